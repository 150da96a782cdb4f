"""Params, hashing, manifests: the contracts under every stage."""

import json
import re
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.core import hashing, schemas
from pipeline.core.errors import MissingInput, ParamsError
from pipeline.core.hashing import ContentHasher, import_closure
from pipeline.core.manifest import RowCount, StageOutput, read_batches, read_manifest, read_table, write_json
from pipeline.core.params import Params, load_params


def content(table: pa.Table, batch_rows: int) -> str:
    hasher = ContentHasher(table.schema)
    for batch in table.to_batches(max_chunksize=batch_rows):
        hasher.update(pa.Table.from_batches([batch]))
    return hasher.hexdigest()


def clean_rows(count: int) -> pa.Table:
    rows = [
        {"ordinal": i, "text": None if i % 7 == 0 else f"row {i} 你好", "language": "en", "steps_applied": ["a"] * (i % 3), "chars_in": i}
        for i in range(count)
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=schemas.CLEAN)


def test_defaults_are_valid_and_frozen():
    params = load_params(None)
    assert params.generate.temperature == 0
    with pytest.raises(ValueError, match="frozen"):
        params.generate.temperature = 1.0


@pytest.mark.parametrize(
    ("override", "names"),
    [
        ("generate.temprature=1", ["generate.temprature", "generate.temperature"]),
        ("genrate.temperature=1", ["genrate", "generate"]),
        ("generate.temperature='0.7'", ["generate.temperature"]),
        ("generate.temperature=.nan", ["generate.temperature"]),
        ("generate.temperature=-1", ["generate.temperature"]),
        ("generate.top_p=1.5", ["generate.top_p"]),
        ("generate.top_k=-1", ["generate.top_k"]),
        ("generate.stop=['']", ["generate.stop"]),
        ("bucket.edges=[5, 3]", ["bucket.edges", "rise"]),
        ("generate.deadline='25:00'", ["generate.deadline"]),
        ("generate", ["section.key=value"]),
    ],
)
def test_wrong_params_name_the_key_path(override, names):
    with pytest.raises(ParamsError) as caught:
        load_params(None, [override])
    assert all(name in str(caught.value) for name in names)


def test_overrides_are_yaml_1_2_and_typed():
    overrides = ["generate.temperature=1e-05", "generate.stop=[no, 'on']", "bucket.edges=[8, 16]", "generate.seed=7", "data.id_field='007'"]
    params = load_params(None, overrides)
    assert params.generate.temperature == 1e-05
    assert params.generate.stop == ("no", "on")
    assert params.bucket.edges == (8, 16)
    assert params.data.id_field == "007"


def test_a_broken_or_missing_params_file_names_the_place(tmp_path):
    with pytest.raises(MissingInput):
        load_params(tmp_path / "none.yaml")
    (tmp_path / "p.yaml").write_text("data:\n  inputs: [\n")
    with pytest.raises(ParamsError, match="line"):
        load_params(tmp_path / "p.yaml")


def test_a_wrong_param_is_found_where_it_was_written(tmp_path):
    file = tmp_path / "p.yaml"
    file.write_text("generate:\n  seed: 1\n\n  temprature: 1\nmodel: {dtype: auto, devise: cpu}\n")
    with pytest.raises(ParamsError) as caught:
        load_params(file, ["generate.top_k=-1", "generate.temp=1"])
    lines = str(caught.value).split("; ")
    assert f"{file} line 4: generate.temprature is not a parameter" in lines
    assert f"{file} line 5: model.devise is not a parameter" in lines
    assert any(line.startswith("-S generate.top_k: ") for line in lines)
    assert "-S generate.temp is not a parameter" in lines


def test_content_hash_depends_on_rows_alone(tmp_path):
    table = clean_rows(1000)
    expected = content(table, 1000)
    assert content(table, 7) == expected
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=13, use_dictionary=False)
    assert content(pq.read_table(tmp_path / "t.parquet"), 500) == expected
    assert content(table.slice(1), 1000) != expected
    assert content(table.take(list(reversed(range(1000)))), 1000) != expected


def test_content_hash_keeps_its_golden_value():
    assert content(clean_rows(10), 10) == "d9651d9361df6680db268191d477edb8b8de552f37ada22737289e7ef722c389"


def test_stage_output_appears_whole_or_not_at_all(tmp_path):
    folder = tmp_path / "data/clean"

    def write(rows: int, fail: bool = False) -> None:
        table = clean_rows(rows)
        with StageOutput(folder, "preprocess") as out:
            out.open("rows", schemas.CLEAN)
            out.open("rejected", schemas.REJECTED)
            for start in range(0, rows, 100):
                out.write("rows", table.slice(start, 100))
            if fail:
                raise KeyError("boom")
            out.finish(inputs=[], rows=RowCount(rows, rows), params={"preprocess": Params().preprocess})

    write(20_000)
    first = read_manifest(folder)
    with pytest.raises(KeyError):
        write(5, fail=True)
    assert read_manifest(folder) == first
    assert read_table(folder).num_rows == 20_000
    assert sum(t.num_rows for t in read_batches(folder, "rejected")) == 0
    assert [p.name for p in folder.parent.iterdir()] == ["clean"]
    write(20_000)
    assert read_manifest(folder) == first


def test_lost_rows_are_a_bug():
    with pytest.raises(AssertionError, match="lost rows"):
        RowCount(3, 1, 1).check("preprocess")


def test_json_never_holds_nan(tmp_path):
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "m.json", {"a": float("nan")})
    assert not list(tmp_path.iterdir())
    write_json(tmp_path / "m.json", {"b": 1, "a": "é"})
    assert json.loads((tmp_path / "m.json").read_text()) == {"a": "é", "b": 1}


def test_closure_holds_the_module_and_what_it_imports():
    closure = import_closure("pipeline.core.manifest")
    assert {"pipeline.core.manifest", "pipeline.core.hashing", "pipeline.core.errors"} <= set(closure)
    assert "pipeline.core.progress" not in closure


def test_an_edited_word_list_is_other_code_for_the_stages_that_read_it(tmp_path, monkeypatch):
    shutil.copytree(hashing.PACKAGE, tmp_path / "pipeline", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(hashing, "PACKAGE", tmp_path / "pipeline")
    stages = [f"pipeline.stages.{name}" for name in ("evaluate", "report", "generate")]
    before = [hashing.code_digest(stage) for stage in stages]
    for name in ("refusals.txt", "sensitive.txt"):
        with open(tmp_path / "pipeline/evaluation" / name, "a") as file:
            file.write("one more phrase\n")
        after = [hashing.code_digest(stage) for stage in stages]
        assert [old != new for old, new in zip(before, after, strict=True)] == [True, True, False]
        before = after


BOMB = "data: {inputs: &a [x, x, x, x, x, x, x, x, x, x]}\n" + "".join(
    f"{letter}: &{letter} [{', '.join([f'*{before}'] * 10)}]\n" for before, letter in zip("abcdefgh", "bcdefghi")
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"data: {id_field: '\xff'}", "not UTF-8 text .byte 18.; save it as UTF-8"),
        (b"data: &a\n  inputs: [*a]\n", "aliases .* written out"),
        (BOMB.encode(), "more than 100,000 values, aliases"),
        (b"data: " + b"[" * 5000, "p.yaml: "),
        (b"generate: {samples: " + b"9" * 5000 + b"}", "p.yaml: "),
        (b"data: {[1, 2]: 3}", "a key must be a word"),
        *((f"{path}: 1{'0' * 26}}}".encode(), "less than") for path in (
            "generate: {samples", "generate: {page_size", "generate: {max_new_tokens", "evaluate: {bootstrap", "bucket: {pad_multiple",
            "gate: {draws", "data: {limit_rows", "model: {max_model_len", "preprocess: {max_chars", "report: {max_cases",
        )),
        (b"bucket: {edges: [1" + b"0" * 26 + b"]}", "less than"),
    ],
)  # fmt: skip
def test_absurd_params_files_are_refused_by_name(tmp_path, text, words):
    file = tmp_path / "p.yaml"
    file.write_bytes(text)
    with pytest.raises(ParamsError, match=rf"(?s)p\.yaml.*{words}" if words != "p.yaml: " else words):
        load_params(file)


def test_text_on_the_command_line_that_is_no_yaml_is_shown_in_quotes():
    with pytest.raises(ParamsError, match=re.escape("quote it: -S 'prompt.template=\"{{ text }}\"'")):
        load_params(None, ["prompt.template={{ text }}"])
    assert load_params(None, ['prompt.template="{{ text }}"']).prompt.template == "{{ text }}"
    with pytest.raises(ParamsError, match=r"prompt\.system: .*text goes in quotes"):
        load_params(None, ["prompt.system=Answer: yes"])
