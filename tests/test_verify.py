"""`pipeline verify`: every damage is found and named; nothing is reported where all is well."""

import json
import shutil

import pytest
from chains import pipeline, rows, run_chain, write_rows

from pipeline.core.manifest import signed, write_json
from pipeline.runners.lock import folder_lock
from pipeline.runners.night_lock import held


@pytest.fixture
def root(finished_run, tmp_path):
    shutil.copytree(finished_run, tmp_path / "copy")
    return tmp_path / "copy/out"


def verify(root, capsys):
    """(exit code, lines)."""
    capsys.readouterr()
    code = pipeline("verify", "--root", root)
    return code, capsys.readouterr().out.splitlines()


def test_a_finished_run_is_good(finished_run, capsys):
    code, lines = verify(finished_run / "out", capsys)
    assert code == 0
    assert lines[0].startswith("good: ")


@pytest.mark.parametrize(("name", "who"), [("night.lock", "`pipeline night` of "), ("run.lock", "another run")])
def test_while_a_run_writes_it_is_named_instead_of_differences(root, capsys, name, who):
    hold = held(root / ".work" / name, "night") if name == "night.lock" else folder_lock(root / ".work" / name)
    (root / "data/clean/rows.parquet").unlink()
    with hold:
        assert pipeline("verify", "--root", root) == 2
    told = capsys.readouterr()
    assert who in told.err and "is writing here" in told.err and told.out == ""
    assert verify(root, capsys)[0] == 5


FILES = [
    "data/validated/rows.parquet", "data/validated/rejected.parquet", "data/clean/rows.parquet", "data/prompts/rows.parquet",
    "data/completions/part-00000-*.parquet", "data/scores/rows.parquet", "data/bad_cases/rows.parquet", "data/results/part-00000-*.parquet",
    "data/results/manifest.json", "data/completions/manifest.json", "models/model.json", "reports/metrics.json", "reports/bad_cases.html",
]  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_one_flipped_bit_is_named(root, capsys, name):
    (file,) = root.glob(name)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    code, lines = verify(root, capsys)
    assert code == 5
    assert any(line.startswith(f"{file.relative_to(root)}: ") for line in lines)


@pytest.mark.parametrize("name", ["data/results/part-00000-*.parquet", "data/prompts/rejected.parquet", "reports/gate.json"])
def test_a_missing_file_is_named(root, capsys, name):
    (file,) = root.glob(name)
    file.unlink()
    code, lines = verify(root, capsys)
    assert code == 5
    assert any(line.startswith(f"{file.relative_to(root)}: is gone") for line in lines)


def test_a_number_edited_in_a_manifest_is_found_even_where_its_own_digest_is_mended(root, capsys):
    file = root / "data/completions/manifest.json"
    edited = json.loads(file.read_text()) | {"completion_tokens": 7}
    write_json(file, edited)
    assert "data/completions/manifest.json: was edited: its content does not give its own digest" in verify(root, capsys)[1]
    write_json(file, signed(edited))
    code, lines = verify(root, capsys)
    assert code == 5
    assert any("data/completions/manifest.json" in line and "data/scores/manifest.json says" in line for line in lines)


def test_swapped_files_and_strangers_are_found(root, capsys):
    a, b, spare = root / "data/clean/rows.parquet", root / "data/clean/rejected.parquet", root / "spare"
    a.rename(spare)
    b.rename(a)
    spare.rename(b)
    (root / "data/results/part-00007.parquet").write_bytes(b"old")
    code, lines = verify(root, capsys)
    assert code == 5
    named = {line.split(":")[0] for line in lines}
    assert {"data/clean/rows.parquet", "data/clean/rejected.parquet", "data/results/part-00007.parquet"} <= named


def test_an_input_that_changed_is_named(root, capsys):
    file = root.parent.parent / "elsewhere.jsonl"
    manifest = json.loads((root / "data/validated/manifest.json").read_text())
    source = next(item["path"] for item in manifest["inputs"])
    assert source.endswith("in.jsonl")
    write_rows(file, rows(2))
    manifest["inputs"][0]["path"] = file.as_posix()
    write_json(root / "data/validated/manifest.json", signed(manifest))
    assert any(line.startswith(file.as_posix()) for line in verify(root, capsys)[1])


def test_changed_weights_are_named(tmp_path, tiny_checkpoint, capsys):
    shutil.copytree(tiny_checkpoint, tmp_path / "model")
    assert run_chain(write_rows(tmp_path / "in.jsonl", rows(2)), tmp_path / "out", tmp_path / "model") == 0
    file = tmp_path / "model/model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    code, lines = verify(tmp_path / "out", capsys)
    assert code == 5
    assert lines[0].startswith(f"{file}: has other bytes")


def test_nothing_to_verify_is_said(tmp_path, capsys):
    assert pipeline("verify", "--root", tmp_path) == 2
    assert "no manifest" in capsys.readouterr().err
