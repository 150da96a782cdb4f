"""Manifests: the published schema holds for each of them, runs that were disturbed say so, bytes depend on rows alone."""

import json
import random
from pathlib import Path

import jsonschema
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chains import manifest, pipeline, rows, run_chain, write_rows

from pipeline.core import schemas
from pipeline.core.hashing import ContentHasher
from pipeline.core.manifest import RowCount, StageOutput, read_manifest, read_table, signed, table_files
from pipeline.core.params import Params
from pipeline.core.paths import Paths

SCHEMA = json.loads((Path(__file__).parents[1] / "docs/manifest.schema.json").read_text(encoding="utf-8"))


def test_every_manifest_of_a_run_fits_the_published_schema(finished_run):
    folders = Paths(finished_run / "out").stage_folders.values()
    for folder in folders:
        jsonschema.validate(read_manifest(folder), SCHEMA)
    jsonschema.validate(json.loads((finished_run / "out/reports/gate.json").read_text()), SCHEMA)


@pytest.mark.parametrize(("key", "value"), [("format", "other"), ("rows", {"into": 1}), ("code", {}), ("self_sha256", "x")])
def test_the_schema_refuses_what_does_not_fit(finished_run, key, value):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(manifest(finished_run / "out") | {key: value}, SCHEMA)


def test_no_clock_host_or_user_is_in_a_manifest(finished_run):
    import getpass
    import platform

    for folder in Paths(finished_run / "out").stage_folders.values():
        text = (folder / "manifest.json").read_text()
        assert platform.node() not in text
        assert f"/{getpass.getuser()}/" not in text
        assert not [key for key in read_manifest(folder) if "time" in key or key.endswith("_s")]


@pytest.mark.parametrize("what", ["input", "params", "weights", "code"])
def test_a_change_during_the_run_marks_it_mixed_and_the_gate_red(tmp_path, tiny_checkpoint, monkeypatch, what):
    import shutil

    from pipeline.engine.engine import Engine

    shutil.copytree(tiny_checkpoint, tmp_path / "model")
    file = write_rows(tmp_path / "data/raw/in.jsonl", rows(3))
    write_rows(tmp_path / "data/control/c.jsonl", rows(2))
    params = {"model": {"source": "model"}, "generate": {"max_new_tokens": 4, "kv_memory": 8_000_000}, "evaluate": {"bootstrap": 10}}
    (tmp_path / "params.yaml").write_text(json.dumps(params))
    root = ("--root", tmp_path)
    for stage in ("model", "validate", "preprocess", "bucket"):
        assert pipeline(stage, *root) == 0
    plain = Engine.generate

    def disturbed(self, requests, stop=None):
        if what == "input":
            (tmp_path / "data/prompts/manifest.json").write_text(held + "\n")
        elif what == "params":
            (tmp_path / "params.yaml").write_text(json.dumps(params | {"generate": {"max_new_tokens": 5}}))
        elif what == "weights":
            data = bytearray((tmp_path / "model/model.safetensors").read_bytes())
            data[-1] ^= 1
            (tmp_path / "model/model.safetensors").write_bytes(data)
        else:
            monkeypatch.setattr("pipeline.core.manifest.code_digest", lambda module: "0" * 64)
        return plain(self, requests, stop=stop)

    monkeypatch.setattr(Engine, "generate", disturbed)
    held = (tmp_path / "data/prompts/manifest.json").read_text()
    assert pipeline("generate", *root) == 0
    found = manifest(tmp_path, "completions")
    assert found["mixed"] is True
    assert {"input": "data/prompts/manifest.json", "params": "params", "weights": "weights of model", "code": "code"}[what] in found[
        "changed_during_run"
    ]
    assert signed(found) == found
    monkeypatch.undo()
    (tmp_path / "data/prompts/manifest.json").write_text(held)
    for stage in ("evaluate", "gate"):
        assert pipeline(stage, *root) == 0
    verdict = json.loads((tmp_path / "reports/gate.json").read_text())
    assert verdict["verdict"] == "red"
    assert file.is_file()


def table(count):
    made = [{"ordinal": i, "sample": 0, "metric": "exact", "value": i / 7, "extracted": None if i % 3 else f"x{i}"} for i in range(count)]
    return pa.Table.from_pylist(made, schema=schemas.SCORES)


def content(data):
    hasher = ContentHasher(schemas.SCORES)
    hasher.update(data)
    return hasher.hexdigest()


def test_content_is_equal_over_row_groups_metadata_and_packing_but_not_over_order(tmp_path):
    data = table(1000)
    for number, options in enumerate(({"row_group_size": 7}, {"compression": "gzip"}, {"use_dictionary": False}, {"version": "1.0"})):
        stamped = data.replace_schema_metadata({"written": f"at {number} o'clock"})
        pq.write_table(stamped, tmp_path / f"{number}.parquet", **options)
        assert content(pq.read_table(tmp_path / f"{number}.parquet").cast(schemas.SCORES)) == content(data)
    order = list(range(1000))
    random.Random(1).shuffle(order)
    assert content(data.take(order)) != content(data)


def test_content_keeps_its_golden_value():
    assert content(table(100)) == "f5711d65306252e5ad8143ed5d02ff39d435aec0fa2728d47271a240961696ed"


def test_batches_never_show_in_the_bytes(tmp_path):
    def write(folder, batch_rows):
        data = table(20_000)
        with StageOutput(folder, "evaluate") as out:
            out.open("rows", schemas.SCORES)
            for start in range(0, 20_000, batch_rows):
                out.write("rows", data.slice(start, batch_rows))
            out.finish(inputs=[], rows=RowCount(20_000, 20_000), params={"evaluate": Params().evaluate})
        return (folder / "rows.parquet").read_bytes(), (folder / "manifest.json").read_bytes()

    assert write(tmp_path / "a/scores", 20_000) == write(tmp_path / "b/scores", 333)


def test_an_old_part_of_a_longer_night_is_gone_and_leftovers_are_ignored(finished_run, tmp_path, tiny_checkpoint):
    import shutil

    shutil.copytree(finished_run / "out", tmp_path / "out")
    folder = tmp_path / "out/data/results"
    shutil.copy(table_files(folder, "part")[0], folder / "part-00007.parquet")
    (folder / "part-00008.parquet").write_bytes(b"")
    assert read_table(folder, "part").num_rows == 15  # readers believe the manifest
    leftover = tmp_path / "out/data/.results.999.tmp"
    leftover.mkdir()
    (leftover / "part-00000.parquet").write_bytes(b"torn")
    assert run_chain(write_rows(tmp_path / "in.jsonl", rows(5)), tmp_path / "out", tiny_checkpoint) == 0
    assert sorted(folder.iterdir()) == [folder / "manifest.json", *table_files(folder, "part")]
    assert not leftover.exists()


def test_readers_in_a_loop_see_the_old_or_the_new_results_whole(tmp_path):
    """Case OUT 37: somebody asks data/results again and again while one night after another is published."""
    import threading

    import duckdb

    folder = tmp_path / "data/results"

    def publish(night):
        data = table(3000 + night)
        metric = pa.array([f"night {night}"] * data.num_rows)
        with StageOutput(folder, "evaluate") as out:
            out.open("part", schemas.SCORES, parts=True)
            out.write("part", data.set_column(data.schema.get_field_index("metric"), "metric", metric))
            out.finish(inputs=[], rows=RowCount(1, 1), params={})

    publish(0)
    seen, wrong, done = set(), [], threading.Event()

    def read():
        while not done.is_set():
            for attempt in (1, 2):  # a read that meets the swap succeeds on its next try
                try:
                    found = duckdb.connect().execute(f"SELECT metric, count(*) FROM '{folder}/*.parquet' GROUP BY metric").fetchall()
                    break
                except duckdb.Error as error:
                    if attempt == 2:
                        wrong.append(error)
                        return
            if len(found) != 1 or found[0][1] != 3000 + int(found[0][0].split()[1]):
                wrong.append(found)
            seen.add(found[0][0])

    thread = threading.Thread(target=read)
    thread.start()
    for night in range(1, 40):
        publish(night)
    done.set()
    thread.join()
    assert not wrong
    assert len(seen) > 1
