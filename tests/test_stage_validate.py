"""Stage validate from files to tables: every record ends in rows or in rejected."""

import gzip
import json
from pathlib import Path

import pytest

from pipeline.core.errors import DataError, MissingInput
from pipeline.core.manifest import read_manifest, read_table
from pipeline.core.params import load_params
from pipeline.core.paths import Paths
from pipeline.stages import validate


def run(root: Path, *overrides: str) -> tuple[list[dict], list[dict]]:
    """Rows and rejects of everything below data/raw and data/control."""
    paths = Paths(root)
    manifest = validate.run(load_params(None, overrides), paths)
    rows, rejected = read_table(paths.validated).to_pylist(), read_table(paths.validated, "rejected").to_pylist()
    assert manifest == read_manifest(paths.validated)
    assert sorted(row["ordinal"] for row in rows + rejected) == list(range(manifest["rows"]["into"]))
    return rows, rejected


def put(root: Path, name: str, content: str | bytes | list) -> Path:
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, list):
        content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in content)
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


def reasons(rejected: list[dict]) -> list[str]:
    return [row["reason"] for row in rejected]


def test_bad_lines_are_rejected_with_a_reason_and_good_ones_pass(tmp_path):
    lines = [
        '{"key": 7, "prompt": "one", "kind": "a"}', '{"key": 1, "prompt": ""}', '{"key": 2}', '{"key": 3, "prompt": "x"',
        '{"key": 7, "prompt": "one", "kind": "a"}', '{"key": 8, "prompt": "two"}',
    ]  # fmt: skip
    put(tmp_path, "data/raw/in.jsonl", "\n".join(lines))
    rows, rejected = run(tmp_path, "data.id_field=key", "data.text_field=prompt")
    assert [(row["id"], row["text"], row["meta"]) for row in rows] == [("7", "one", '{"kind":"a"}'), ("8", "two", "{}")]
    assert reasons(rejected) == ["empty_text", "missing_text", "invalid_json", "duplicate_identical"]
    assert [row["source_line"] for row in rejected] == [2, 3, 4, 5]
    assert all(row["detail"] for row in rejected)


def test_control_rows_come_after_the_inputs_and_may_use_standard_names(tmp_path):
    put(tmp_path, "data/raw/in.jsonl", [{"q": "a"}, {"q": "b"}])
    put(tmp_path, "data/control/c.jsonl", [{"id": "k", "text": "c", "reference": ["r"]}])
    rows, _ = run(tmp_path, "data.text_field=q")
    assert [(row["ordinal"], row["control"], row["text"]) for row in rows] == [(0, False, "a"), (1, False, "b"), (2, True, "c")]
    assert rows[0]["id"] == "data/raw/in.jsonl:1"
    assert rows[2]["reference"] == '["r"]'


def test_no_readable_row_and_missing_files_have_their_own_errors(tmp_path):
    with pytest.raises(MissingInput, match="data/raw"):
        run(tmp_path)
    put(tmp_path, "data/raw/in.jsonl", b"")
    with pytest.raises(DataError, match="nothing in it"):
        run(tmp_path)
    put(tmp_path, "data/raw/in.jsonl", "{}\n")
    with pytest.raises(DataError, match=r"data/raw/in\.jsonl:1: missing_text"):
        run(tmp_path)
    assert not (tmp_path / "data/validated").exists()


def test_a_damaged_file_stops_or_costs_what_it_lacks(tmp_path):
    packed = gzip.compress("".join(json.dumps({"text": f"row {i} {i * 7919}"}) + "\n" for i in range(5000)).encode())
    put(tmp_path, "data/raw/a.jsonl.gz", packed[: len(packed) // 2])
    put(tmp_path, "data/raw/b.jsonl", [{"text": "good"}])
    with pytest.raises(DataError, match=r"a\.jsonl\.gz: the gzip stream is cut"):
        run(tmp_path)
    rows, rejected = run(tmp_path, "data.on_damaged_file=keep_good")
    assert reasons(rejected) == ["damaged_file"]
    assert [row["text"] for row in rows[:-1]] == [f"row {i} {i * 7919}" for i in range(len(rows) - 1)]
    assert len(rows) > 2000
    assert rows[-1]["text"] == "good"


def test_duplicates_are_found_across_files(tmp_path):
    put(tmp_path, "data/raw/a.jsonl", [{"id": "a", "text": "1"}, {"id": "b", "text": "2"}, {"id": 1, "text": "3"}])
    put(
        tmp_path,
        "data/raw/b.jsonl",
        [{"id": "a", "text": "x"}, {"id": "b", "text": "2"}, {"id": "1", "text": "3"}, {"id": "a ", "text": "1"}],
    )
    rows, rejected = run(tmp_path)
    assert [row["id"] for row in rows] == ["a", "b", "1", "a "]
    assert reasons(rejected) == ["duplicate_conflict", "duplicate_identical", "duplicate_identical"]
    assert "data/raw/a.jsonl:1" in rejected[0]["detail"]
    with pytest.raises(DataError, match="on_duplicate_id"):
        run(tmp_path, "data.on_duplicate_id=fail")


def test_the_same_input_gives_the_same_bytes(tmp_path):
    put(tmp_path, "data/raw/in.jsonl", [{"text": f"row {i}"} for i in range(100)])
    run(tmp_path)
    first = (tmp_path / "data/validated/manifest.json").read_bytes()
    run(tmp_path)
    assert (tmp_path / "data/validated/manifest.json").read_bytes() == first
