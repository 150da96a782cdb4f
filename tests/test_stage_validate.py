"""Stage validate from files to tables: every record ends in rows or in rejected."""

import gzip
import json
import re
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.cli.main import main
from pipeline.core.errors import DataError, MissingInput, ParamsError, UsageError
from pipeline.core.hashing import PACKAGE
from pipeline.core.manifest import read_manifest, read_table
from pipeline.core.params import load_params, parse_params, read_yaml
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


def test_control_rows_do_not_share_the_layout_of_the_inputs(tmp_path):
    put(tmp_path, "data/raw/in.json", json.dumps({"list": [{"q": "你好"}, {"q": "b"}]}, ensure_ascii=False, indent=1).encode("gb18030"))
    put(tmp_path, "data/control/c.json", json.dumps([{"text": "控制"}], ensure_ascii=False))
    put(tmp_path, "data/control/d.jsonl", [{"text": "控制的另外一行"}])
    rows, _ = run(tmp_path, "data.encoding=gb18030", "data.format=json", "data.records=list[]", "data.text_field=q")
    assert [row["text"] for row in rows] == ["你好", "b", "控制", "控制的另外一行"]


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


@pytest.mark.parametrize(
    ("name", "content", "code", "says"),
    [
        ("in.jsonl", b"", 3, "nothing in it"),
        ("in.jsonl", '{"text": "x"}'.encode("utf-16"), 3, "data.encoding: utf-16"),
        ("in.txt", b"words", 3, "data.format"),
        ("in.json", b'[{"text": "x"}', 3, "file ends"),
        ("in.json", b"[]", 3, "nothing in it"),
        ("in.csv", b"text\n", 3, "nothing in it"),
        ("other.dvc", b"", 2, "data/raw"),
    ],
)
def test_the_command_ends_with_the_code_of_the_contract(tmp_path, capsys, name, content, code, says):
    put(tmp_path, f"data/raw/{name}", content)
    with pytest.raises(SystemExit) as ended:
        main(["validate", "--root", str(tmp_path)])
    assert ended.value.code == code
    assert says in capsys.readouterr().err


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


def test_a_byte_order_mark_is_reported_and_changes_no_row(tmp_path):
    lines = "".join(json.dumps({"id": i, "text": "你好", "more": {"k": [i]}}, ensure_ascii=False) + "\n" for i in range(3)).encode()
    contents = []
    for marks, content in ((None, lines), ("utf-8", b"\xef\xbb\xbf" + lines)):
        put(tmp_path, "data/raw/in.jsonl", content)
        run(tmp_path)
        manifest = read_manifest(tmp_path / "data/validated")
        assert manifest["files"][0]["byte_order_mark"] == marks
        contents.append([item["content_sha256"] for item in manifest["outputs"]])
    assert contents[0] == contents[1]


def test_the_same_input_gives_the_same_bytes(tmp_path):
    put(tmp_path, "data/raw/in.jsonl", [{"text": f"row {i}"} for i in range(100)])
    run(tmp_path)
    first = (tmp_path / "data/validated/manifest.json").read_bytes()
    run(tmp_path)
    assert (tmp_path / "data/validated/manifest.json").read_bytes() == first


def test_worker_processes_change_nothing(tmp_path, monkeypatch):
    rows = [{"id": i % 700, "text": f"row {i % 5} {'x' * (i % 50)}", "n": i / 7} for i in range(1000)]
    content = "".join(json.dumps(row) + "\n" for row in rows) + '{"broken"\n'
    put(tmp_path, "data/raw/a.jsonl", content)
    put(tmp_path, "data/raw/b.csv", "id,text\n" + "".join(f"c{i},hello {i}\n" for i in range(500)))
    pq.write_table(pa.table({"id": ["p1", "p2"], "text": ["a", None]}), tmp_path / "data/raw/c.parquet")
    put(tmp_path, "data/raw/d.jsonl.gz", gzip.compress(content.replace('"id": ', '"id": 1').encode())[:-20])
    written = []
    for least in (validate.PARALLEL_BYTES, 0):
        monkeypatch.setattr(validate, "PARALLEL_BYTES", least)
        monkeypatch.setattr("pipeline.tables.readers.CHUNK_BYTES", 1000)
        monkeypatch.setattr("pipeline.tables.workers.cores", lambda: 2)
        run(tmp_path, "data.on_damaged_file=keep_good")
        written.append((tmp_path / "data/validated/manifest.json").read_bytes())
    assert written[0] == written[1]


def test_bad_rows_stop_the_stage_where_told(tmp_path):
    put(tmp_path, "data/raw/in.jsonl", '{"text": "a"}\n{"text": ""}\n')
    with pytest.raises(DataError, match=r"in\.jsonl:2: empty_text.*on_bad_row"):
        run(tmp_path, "data.on_bad_row=fail")


def test_a_limit_takes_the_first_rows_of_the_inputs_only(tmp_path):
    put(tmp_path, "data/raw/a.jsonl", '{"text": "1"}\nbad\n{"text": "3"}\n')
    put(tmp_path, "data/raw/b.jsonl", [{"text": "4"}, {"text": "5"}])
    put(tmp_path, "data/control/c.jsonl", [{"text": "c"}, {"text": "d"}])
    for limit, texts in ((1, ["1"]), (3, ["1", "3"]), (4, ["1", "3", "4"]), (99, ["1", "3", "4", "5"])):
        rows, _ = run(tmp_path, f"data.limit_rows={limit}")
        assert [row["text"] for row in rows if not row["control"]] == texts
        assert [row["text"] for row in rows if row["control"]] == ["c", "d"]


def test_under_dvc_files_outside_data_are_refused_with_the_way_out(tmp_path, monkeypatch):
    file = put(tmp_path, "elsewhere/in.jsonl", [{"text": "a"}])
    run(tmp_path, f'data.inputs=["{file}"]')
    monkeypatch.setenv("DVC_STAGE", "validate")
    with pytest.raises(UsageError, match="dvc add"):
        run(tmp_path, f'data.inputs=["{file}"]')


def test_files_kept_by_nobody_are_warned_about_in_a_project_only(tmp_path, caplog):
    names = ["tracked", "loose", "pointed"]
    for name in names:
        put(tmp_path, f"data/raw/{name}.jsonl", [{"id": name, "text": "a"}])
    put(tmp_path, "data/raw/pointed.jsonl.dvc", "outs: []\n")
    for command in (["init", "-q"], ["add", "data/raw/tracked.jsonl"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    rows, _ = run(tmp_path)
    assert len(rows) == 3 and not caplog.records
    put(tmp_path, "dvc.yaml", "stages: {}\n")
    run(tmp_path)
    warned = [record.getMessage() for record in caplog.records if "neither Git nor DVC" in record.getMessage()]
    assert [name for name in names if any(name in text for text in warned)] == ["loose"]
    assert "copy it into data/raw" in warned[0]
    (tmp_path / ".dvc").mkdir()
    run(tmp_path)
    assert "`dvc add data/raw/loose.jsonl`" in caplog.records[-1].getMessage()


def test_a_missing_file_with_a_pointer_says_how_to_get_it(tmp_path):
    put(tmp_path, "data/raw/in.jsonl.dvc", "outs: []\n")
    with pytest.raises(MissingInput, match="dvc pull"):
        run(tmp_path, "data.inputs=[data/raw/in.jsonl]")


def test_openai_batch_files_may_stand_beside_plain_control_rows(tmp_path):
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}
    put(tmp_path, "data/raw/in.jsonl", [{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}])
    put(tmp_path, "data/control/c.jsonl", [{"id": "k", "text": "c"}])
    rows, rejected = run(tmp_path, "data.format=openai-batch")
    assert [(row["id"], row["overrides"], row["text"]) for row in rows] == [("a", '{"max_new_tokens":8}', None), ("k", "{}", "c")]
    assert rejected == []
    with pytest.raises(DataError, match="openai-batch"):
        run(tmp_path)


def test_statistics_and_the_summary_name_what_was_found(tmp_path):
    put(tmp_path, "data/raw/in.jsonl", [{"text": "a" * n, "reference": "r" if n % 2 else ""} for n in range(1, 11)] + [{"text": ""}, 5])
    run(tmp_path)
    manifest = read_manifest(tmp_path / "data/validated")
    found = manifest["statistics"]
    assert (found["rows"], found["accepted"], found["rejected"]) == (12, 10, 2)
    assert found["chars"] == {"min": 1, "mean": 5.5, "max": 10, "p50": 5, "p90": 9, "p99": 10}
    assert (found["with"]["reference"], found["fields"]) == (5, {"text": 11, "reference": 10})
    assert found["reasons"] == {"empty_text": 1, "not_an_object": 1}
    text = validate.summary(manifest)
    assert "data/raw/in.jsonl" in text and "empty_text 1" in text


DOC = Path(__file__).parents[1] / "docs/inputs.md"


@pytest.mark.parametrize("block", re.findall(r"```yaml\n(.*?)```", DOC.read_text("utf-8"), re.DOTALL))
def test_mappings_in_the_docs_are_valid_params(block):
    assert parse_params(read_yaml(block, "docs")).data.inputs


def test_the_docs_name_every_reason():
    code = "".join(file.read_text("utf-8") for file in (PACKAGE / "tables").glob("*.py")) + (PACKAGE / "stages/validate.py").read_text(
        "utf-8"
    )
    raised = set(re.findall(r'Bad(?:Row)?\(\s*"(\w+)"', code))
    named = set(re.findall(r"`(\w+)`", DOC.read_text("utf-8").split("## Reasons")[1].split("## ")[0])) - {"pipeline"}
    assert raised == named


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
def test_the_good_rows_of_a_small_damaged_file_are_kept_with_their_ids(tmp_path, name):
    lines = ['{"id": "x1", "text": "one"}', '{"id": "x2", "text": "two"}'] if name == "a.jsonl" else ["\ufeffid,text", "x1,one", "x2,two"]
    put(tmp_path, f"data/raw/{name}.gz", gzip.compress("".join(line + "\n" for line in lines).encode()) + b"garbage")
    rows, rejected = run(tmp_path, "data.on_damaged_file=keep_good")
    assert [(row["id"], row["text"]) for row in rows] == [("x1", "one"), ("x2", "two")]
    assert reasons(rejected) == ["damaged_file"]


@pytest.mark.parametrize("key", ["id_field", "reference_field"])
def test_a_field_named_in_params_that_no_row_has_is_an_error(tmp_path, key):
    put(tmp_path, "data/raw/in.jsonl", [{"ticket": "t1", "text": "a", "golden_answer": "b"}, {"text": "c", "deep": {"er": 1}}])
    wrong, right = {"id_field": ("tiket", "ticket"), "reference_field": ("golden", "golden_answer")}[key]
    with pytest.raises(ParamsError, match=rf"data.{key}: no row has a field '{wrong}'; did you mean {right}.* fields seen: deep, golden"):
        run(tmp_path, f"data.{key}={wrong}")
    assert run(tmp_path, f"data.{key}={right}")[1] == []
    assert run(tmp_path, f"data.{key}=deep.er")[1] == []


def test_the_summary_says_that_no_row_has_a_reference(tmp_path):
    put(tmp_path, "data/raw/in.jsonl", [{"text": "a", "referense": "b"}])
    run(tmp_path)
    shown = validate.summary(read_manifest(Paths(tmp_path).validated))
    assert "0 of 1 rows have a reference (data.reference_field: reference); did you mean referense? fields seen: referense, text" in shown


@pytest.mark.parametrize(("name", "mark", "told"), [("a.csv", ";", '";"'), ("a.csv", "\t", '"\\\\t"'), ("a.tsv", ",", '","')])
def test_a_table_with_another_delimiter_is_told_of(tmp_path, name, mark, told):
    put(tmp_path, f"data/raw/{name}", f"id{mark}text\n1{mark}one\n")
    with pytest.raises(DataError, match=f"set data.delimiter: {told}"):
        run(tmp_path)
