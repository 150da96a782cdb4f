"""Fixtures shared by all tests."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
from checkpoints import write_tiny_llama
from hypothesis import settings
from projects import commit, copy_project, dvc, ran

settings.register_profile("default", deadline=None, max_examples=100)
settings.register_profile("thorough", deadline=None, max_examples=10_000)  # by hand: pytest --hypothesis-profile=thorough


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory):
    """A folder with a tiny random Llama, its tokenizer and chat template; shared, so never change it: copy it first."""
    return write_tiny_llama(tmp_path_factory.mktemp("checkpoint") / "tiny")


@pytest.fixture(scope="session")
def night_project(tmp_path_factory, tiny_checkpoint):
    """A copy of the project after its first `dvc repro`, all committed; tests leave the working tree as they found it."""
    folder = copy_project(tmp_path_factory.mktemp("dvc") / "a project", tiny_checkpoint)
    assert len(ran(dvc(folder, "repro"))) == 9
    commit(folder, "first night")
    return folder


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory, tiny_checkpoint):
    """A folder with in.jsonl and out/, the tree of one `pipeline run` of 12 good rows and 3 bad ones; copy it before changing it."""
    from chains import BAD_LINES, rows, run_chain, write_rows

    folder = tmp_path_factory.mktemp("finished")
    file = write_rows(folder / "in.jsonl", rows(12))
    file.write_text(file.read_text(encoding="utf-8") + BAD_LINES, encoding="utf-8")
    assert run_chain(file, folder / "out", tiny_checkpoint) == 0
    return folder
