"""Stage preprocess: rows in = rows out + rejected, same bytes for same rows, duplicates within their group."""

import json
import os
import subprocess
import sys

import pytest
from text_rows import validated, write_validated

from pipeline.core.errors import MissingInput, ParamsError
from pipeline.core.hashing import PACKAGE
from pipeline.core.manifest import read_manifest, read_table
from pipeline.core.params import Params, PreprocessParams
from pipeline.core.paths import Paths
from pipeline.stages import preprocess
from pipeline.text.preprocess import Preprocessor

LONG = "The baker opens the window before seven and the river runs past the mill while a green lamp stands beside the quiet engine."
ROWS = [
    "hello  world ", "", "<p>Hi <b>there</b></p><script>x()</script>", LONG, LONG + "!", LONG, {"text": LONG, "control": True},
    [{"role": "system", "content": "a  b"}, {"role": "user", "content": "ＡＢＣ１２３，世界  "}],
]  # fmt: skip


def run(root, rows=ROWS, **params):
    paths = write_validated(root, rows)
    return preprocess.run(Params(preprocess=PreprocessParams(**params)), paths), paths


def test_every_row_ends_clean_or_rejected_with_a_reason(tmp_path):
    manifest, paths = run(tmp_path, dedup="near")
    assert manifest["rows"] == {"into": 8, "out": 5, "rejected": 3, "failed": 0}
    clean, rejected = read_table(paths.clean).to_pylist(), read_table(paths.clean, "rejected").to_pylist()
    assert [row["ordinal"] for row in clean] == [0, 2, 3, 6, 7]
    assert [(row["ordinal"], row["id"], row["reason"]) for row in rejected] == [
        (1, "r1", "too_short"), (4, "r4", "duplicate_near"), (5, "r5", "duplicate_exact"),
    ]  # fmt: skip
    assert all("ordinal 3" in row["detail"] for row in rejected[1:])
    assert manifest["reasons"] == {"too_short": 1, "duplicate_near": 1, "duplicate_exact": 1}
    assert clean[0] | {"language": ""} == {
        "ordinal": 0, "text": "hello world", "messages": None, "language": "", "chars_in": 13, "chars_out": 11,
        "steps_applied": ["squeeze_whitespace"],
    }  # fmt: skip
    assert json.loads(clean[4]["messages"]) == [{"role": "system", "content": "a b"}, {"role": "user", "content": "ABC123，世界"}]
    assert {step["name"]: step["rows"] for step in manifest["steps"]}["squeeze_whitespace"] == 2


def test_without_dedup_all_copies_stay(tmp_path):
    manifest, _ = run(tmp_path)
    assert manifest["rows"]["out"] == 7
    assert manifest["fingerprint"] == Preprocessor(PreprocessParams()).fingerprint


def test_the_stage_equals_the_preprocessor_in_any_batches_and_processes(tmp_path, monkeypatch):
    rows = [f"{LONG[: 40 + i % 60]} {'x ' * (i % 5)} {i % 7}" for i in range(400)] + ROWS
    params = PreprocessParams(dedup="near")
    _, paths = run(tmp_path / "one", rows, dedup="near")
    clean, rejected = Preprocessor(params).apply(validated(rows))
    assert read_table(paths.clean).equals(clean)
    assert read_table(paths.clean, "rejected").equals(rejected)
    assert 0 < rejected.num_rows < 400
    monkeypatch.setattr(preprocess, "POOL_FROM_ROWS", 1)
    monkeypatch.setattr(preprocess, "BATCH_ROWS", 100)
    _, pooled = run(tmp_path / "two", rows, dedup="near")
    for name in ("rows.parquet", "rejected.parquet"):
        assert (paths.clean / name).read_bytes() == (pooled.clean / name).read_bytes()
    assert read_manifest(paths.clean) == read_manifest(pooled.clean)


def test_worker_processes_do_not_run_the_callers_program_again(tmp_path):
    write_validated(tmp_path, ROWS * 30)
    script = tmp_path / "unguarded.py"
    script.write_text(
        "from pathlib import Path\nfrom pipeline.core.params import Params\nfrom pipeline.core.paths import Paths\n"
        "from pipeline.stages import preprocess\nprint('began')\npreprocess.POOL_FROM_ROWS, preprocess.BATCH_ROWS = 1, 50\n"
        "print(preprocess.run(Params(), Paths(Path(__file__).parent))['rows']['into'])\n"
    )
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, cwd=PACKAGE.parent, env=os.environ | {"PYTHONPATH": "."}
    )
    assert done.stdout.split() == ["began", "240"], done.stderr


def test_nothing_is_left_in_the_work_folder(tmp_path):
    _, paths = run(tmp_path, dedup="near")
    assert {path.name for path in paths.work.iterdir()} <= {"status.json", "telemetry"}


def test_no_rows_give_empty_tables(tmp_path):
    manifest, paths = run(tmp_path, [], dedup="near")
    assert manifest["rows"]["into"] == 0
    assert read_table(paths.clean).num_rows == 0


def test_what_is_missing_or_unknown_is_named(tmp_path):
    with pytest.raises(MissingInput, match="validated"):
        preprocess.run(Params(), Paths(tmp_path))
    with pytest.raises(ParamsError, match=r"preprocess\.steps\[0\].*squeze.*squeeze_whitespace"):
        run(tmp_path, steps=("squeze_whitespace",))
    with pytest.raises(ParamsError, match="form"):
        run(tmp_path, steps=({"normalize_unicode": {"form": "NFX"}},))
