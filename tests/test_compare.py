"""`pipeline compare`: every changed row with its cause, scores with intervals."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from chains import pipeline, rows, run_chain, write_rows
from checkpoints import write_tiny_llama


@pytest.fixture(scope="module")
def before(tmp_path_factory, tiny_checkpoint):
    folder = tmp_path_factory.mktemp("before")
    assert run_chain(write_rows(folder / "in.jsonl", rows(6)), folder / "out", tiny_checkpoint) == 0
    return folder / "out"


def compare(a, b, capsys):
    capsys.readouterr()
    assert pipeline("compare", a, b, "--json") == 0
    return json.loads(capsys.readouterr().out)


def changed(found):
    return {row["id"]: row["cause"] for row in found["changed"]}


def test_a_run_equals_itself(before, capsys):
    found = compare(before, before, capsys)
    assert found["counts"] == {"same": 6, "changed": 0, "only_a": 0, "only_b": 0}
    assert found["differs"] == {}
    assert all(item["difference"] in (0, None) for item in found["metrics"].values())


def test_data_and_params_are_told_apart(before, tmp_path, tiny_checkpoint, capsys):
    data = [*rows(6)[1:], {"id": "new", "text": "Say more"}]
    data[0]["text"] = "Say something else"
    file = write_rows(tmp_path / "in.jsonl", data)
    assert run_chain(file, tmp_path / "out", tiny_checkpoint, "generate.repetition_penalty=1.7") == 0
    found = compare(before, tmp_path / "out", capsys)
    assert (found["counts"]["only_a"], found["counts"]["only_b"]) == (1, 1)
    assert changed(found)["r1"] == "data"
    assert {cause for row, cause in changed(found).items() if row != "r1"} == {"params"}
    assert found["differs"] == {"params": ["generate.repetition_penalty: 1.0 -> 1.7"]}
    assert all(0 <= row["first_differing_token"] <= 8 for row in found["changed"])


@pytest.mark.parametrize(
    ("option", "cause"), [("preprocess.steps=[{mask_numbers: {}}]", "cleaning"), ("prompt.system=Answer in one word", "prompt")]
)
def test_cleaning_and_prompt_are_told_apart(before, tmp_path, tiny_checkpoint, capsys, option, cause):
    assert run_chain(before.parent / "in.jsonl", tmp_path / "out", tiny_checkpoint, option) == 0
    found = compare(before, tmp_path / "out", capsys)
    assert set(changed(found).values()) == {cause}
    assert found["counts"]["changed"] > 0


def test_another_model_is_told_and_the_text_names_the_metrics(before, tmp_path, capsys):
    model = write_tiny_llama(tmp_path / "model", seed=9)
    assert run_chain(before.parent / "in.jsonl", tmp_path / "out", model) == 0
    assert set(changed(compare(before, tmp_path / "out", capsys)).values()) == {"model"}
    assert pipeline("compare", before, tmp_path / "out") == 0
    text = capsys.readouterr().out
    assert "6 changed" in text
    assert "weights_digest" in text
    assert "rouge_l" in text


@pytest.mark.parametrize("side", ["nowhere", "."])
def test_a_side_that_means_nothing_is_refused(before, tmp_path, monkeypatch, capsys, side):
    monkeypatch.chdir(tmp_path)
    assert pipeline("compare", before, side) == 2
    assert "error: " in capsys.readouterr().err


DVC_YAML = """
stages:
  chain:
    cmd: cp -r "$(cat which.txt)/." .
    deps: [which.txt]
    outs: [data/validated, data/clean, data/prompts, data/completions, data/scores, data/bad_cases, models/model.json]
    metrics: [{reports/metrics.json: {cache: false}}]
"""


def sh(folder, *words):
    names = {f"GIT_{who}_{what}": "t@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, env={**os.environ, **names, "DVC_NO_ANALYTICS": "1"})
    assert done.returncode == 0, done.stderr
    return done.stdout


def outs_of(root, folder):
    """The stage outs of a finished run, as a stage of a DVC project would put them."""
    for name in ("data", "models"):
        shutil.copytree(root / name, folder / name)
    (folder / "reports").mkdir()
    shutil.copyfile(root / "reports/metrics.json", folder / "reports/metrics.json")
    return folder


def test_git_revisions_and_experiments_are_restored_from_the_cache(before, tmp_path, tiny_checkpoint, monkeypatch, capsys):
    assert run_chain(before.parent / "in.jsonl", tmp_path / "hot", tiny_checkpoint, "generate.temperature=2.0") == 0
    old, new = outs_of(before, tmp_path / "old"), outs_of(tmp_path / "hot", tmp_path / "new")
    project = tmp_path / "project"
    project.mkdir()
    dvc = (sys.executable, "-m", "dvc")
    sh(project, "git", "init", "-q")
    sh(project, *dvc, "init", "-q")
    (project / ".gitignore").write_text("/data/results\n/.work\n")
    (project / "dvc.yaml").write_text(DVC_YAML)
    (project / "which.txt").write_text(str(old))
    sh(project, *dvc, "repro", "-q")
    sh(project, "git", "add", "-A")
    sh(project, "git", "commit", "-qm", "old")
    (project / "which.txt").write_text(str(new))
    sh(project, *dvc, "exp", "run", "-q", "-n", "hot-night")
    monkeypatch.chdir(project)
    for a, b in (("HEAD", "."), ("HEAD", "hot-night"), (before, "hot-night")):
        found = compare(a, b, capsys)
        assert set(changed(found).values()) == {"params"}
        assert found["differs"]["params"] == ["generate.temperature: 0.0 -> 2.0"]
    shutil.rmtree(project / ".dvc/cache")
    shutil.rmtree(project / ".work")
    assert pipeline("compare", "HEAD", ".") == 2
    assert "dvc fetch" in capsys.readouterr().err
