"""The bundled sample: enough of each task and language, right where it can be computed, bad rows rejected with reasons."""

import json
import re
import shutil
from collections import Counter
from pathlib import Path

import pytest
from projects import PROJECT

from pipeline.core.errors import UsageError
from pipeline.core.manifest import read_table
from pipeline.core.params import load_params, parse_params
from pipeline.core.paths import Paths
from pipeline.stages import preprocess, validate
from pipeline.tables.sources import find_sources

TASKS = {"capitals", "arithmetic", "units", "dates", "extraction", "sentiment", "summary", "translation"}
COUNT = {"plus": "+", "minus": "-", "times": "*", "加": "+", "减": "-", "乘以": "*"}


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    """(validated rows, rejected rows) of the sample, as validate and preprocess see it."""
    paths = Paths(tmp_path_factory.mktemp("sample"))
    for name in ("raw", "control"):
        shutil.copytree(PROJECT / "data" / name, paths.root / "data" / name)
    params = load_params(PROJECT / "params.yaml")
    validate.run(params, paths)
    preprocess.run(params, paths)
    rejected = [*read_table(paths.validated, "rejected").to_pylist(), *read_table(paths.clean, "rejected").to_pylist()]
    return read_table(paths.validated).to_pylist(), rejected


def test_there_is_enough_of_each_task_and_language(read):
    rows, rejected = read
    night = [json.loads(row["meta"]) for row in rows if not row["control"]]
    control = [row for row in rows if row["control"]]
    assert len(night) + sum(not row["control"] for row in rejected) + sum(row["control"] for row in rows) >= 290
    for kind in (night, [json.loads(row["meta"]) for row in control]):
        assert {meta["task"] for meta in kind} == TASKS
        assert 0.3 < sum(meta["lang"] == "zh" for meta in kind) / len(kind) < 0.45
    assert len(control) == 60
    assert all(row["reference"] for row in control)
    assert any(not row["reference"] for row in rows)
    assert any(len(json.loads(row["reference"] or "[]")) > 1 for row in rows)


def test_bad_rows_are_rejected_for_many_reasons(read):
    reasons = Counter(row["reason"] for row in read[1])
    assert sum(reasons.values()) >= 12
    assert len(reasons) >= 6, reasons
    assert not any(row["control"] for row in read[1])


def test_sums_and_json_of_the_references_are_right(read):
    checked = 0
    for row in read[0]:
        reference = json.loads(row["reference"] or "[]")
        match = re.match(r"(?:What is )?(\d+) ?(plus|minus|times|加|减|乘以) ?(\d+)", row["text"])
        if match:
            a, sign, b = int(match[1]), COUNT[match[2]], int(match[3])
            assert reference == [str({"+": a + b, "-": a - b, "*": a * b}[sign])], row["id"]
            checked += 1
        if json.loads(row["meta"])["task"] == "extraction":
            assert isinstance(json.loads(reference[0]), dict), row["id"]
            checked += 1
    assert checked > 60


def test_dvc_sees_every_file_that_may_be_an_input(tmp_path, monkeypatch):
    paths = Paths(tmp_path)
    file = tmp_path / "data/elsewhere/a.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text('{"id": "1", "text": "x"}\n')
    params = parse_params({"data": {"inputs": ["data/elsewhere/*"], "control": []}})
    monkeypatch.setenv("DVC_STAGE", "validate")
    with pytest.raises(UsageError, match="data/raw"):
        validate.run(params, paths)
    monkeypatch.delenv("DVC_STAGE")
    assert validate.run(params, paths)["rows"]["out"] == 1


def test_the_folders_stay_when_the_sample_is_removed_and_no_row_comes_from_what_keeps_them(tmp_path):
    paths = Paths(tmp_path)
    for name in ("raw", "control"):
        shutil.copytree(PROJECT / "data" / name, tmp_path / "data" / name)
        left = {file.name for file in (tmp_path / "data" / name).iterdir()} - {
            Path(source.name).name for source in find_sources([f"data/{name}/*"], [], paths)
        }
        assert left == {"README.md"}
