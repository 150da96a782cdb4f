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
