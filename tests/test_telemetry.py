"""Telemetry and logs: numbers of a run, bounded, without row text."""

import errno
import json
import os
import shutil
import subprocess

import pyarrow.parquet as pq
import pytest
from chains import results, run_chain, write_rows

from pipeline.cli.main import _report
from pipeline.core import telemetry
from pipeline.core.errors import DataError, PipelineError
from pipeline.core.logging import EventLog, forget_old
from pipeline.core.paths import Paths
from pipeline.core.telemetry import Meter, timed


def test_a_stage_leaves_its_numbers_and_its_rows(tmp_path):
    paths = Paths(tmp_path)
    with timed(paths, "generate"):
        meter = Meter()
        with meter.phase("decode"):
            pass
        meter.add("completion_tokens", 3)
        meter.add("completion_tokens", 4)
        meter.add("pages_used_max", 9)
        meter.add("pages_used_max", 5)
        meter.row(ordinal=1, completion_tokens=7, total_s=0.5)
        meter.save(paths.work, "generate")
    found = telemetry.collected(paths.work)["generate"]
    assert found["counts"] == {"completion_tokens": 7, "pages_used_max": 9}
    assert found["exit_code"] == 0
    assert found["peak_rss_bytes"] > 1_000_000
    assert telemetry.collected_rows(paths.work).to_pylist()[0]["completion_tokens"] == 7
    telemetry.clear(paths.work)
    assert telemetry.collected(paths.work) == {}
    assert telemetry.collected_rows(paths.work).num_rows == 0


def test_a_failing_stage_is_recorded_with_its_exit_code_and_not_its_words(tmp_path):
    paths = Paths(tmp_path)
    with pytest.raises(DataError), timed(paths, "validate"):
        raise DataError("row 1: 'zebrafinch' is no text")
    assert telemetry.collected(paths.work)["validate"]["exit_code"] == 3
    text = "".join(file.read_text() for file in paths.logs.iterdir())
    assert "DataError" in text
    assert "zebrafinch" not in text


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (MemoryError(), 6, "out of memory"),
        (OSError(errno.ENOSPC, "No space left on device"), 6, "{root}: no space left"),
        (OSError(errno.EACCES, "Permission denied", "/a"), 6, "/a: Permission denied"),
        (ValueError("zebrafinch"), 70, "ValueError (a bug"),
        (PipelineError("said by nobody"), 70, "said by nobody"),
    ],
)
def test_a_stage_leaves_the_exit_code_that_its_command_gives_and_the_words(tmp_path, capsys, error, code, words):
    with pytest.raises(type(error)), timed(Paths(tmp_path), "generate"):
        raise error
    left = telemetry.collected(tmp_path / ".work")["generate"]
    assert left["exit_code"] == code == _report(error)
    assert left["error"].startswith(words.format(root=tmp_path))
    assert "zebrafinch" not in left["error"]
    assert capsys.readouterr().err.startswith("error: ")


def test_no_text_of_a_row_is_in_logs_metrics_or_the_record(tmp_path, tiny_checkpoint, monkeypatch, capsys):
    monkeypatch.setenv("PIPELINE_LOG_LEVEL", "debug")
    mark = "zebrafinch"
    row = {"text": f"Say {mark}", "reference": mark, "source": mark, "system": mark}
    bad = f'{{"id": "bad", "text": {{"{mark}": 1}}}}\n{{"id": "cut", "text": "{mark}\n'
    file = write_rows(tmp_path / "in.jsonl", [row | {"id": "good"}, row | {"id": "long", "text": mark * 400}])
    file.write_text(file.read_text() + bad)
    assert run_chain(file, tmp_path / "out", tiny_checkpoint, "data.overrides=[system]") == 0
    assert {line["status"] for line in results(tmp_path / "out")} == {"answered", "rejected"}
    assert mark in (tmp_path / "out/reports/bad_cases.html").read_text()  # where row text may be, the mark is seen
    answers = [line["completion"] for line in results(tmp_path / "out") if line["completion"]]
    places = ("logs", "reports/runs", ".work/telemetry", ".work/status.json")
    files = [item for place in places for item in [tmp_path / "out" / place, *(tmp_path / "out" / place).rglob("*")] if item.is_file()]
    assert {"run.json", "history.jsonl", "pipeline.prom", "status.json", "rows.parquet"} <= {item.name for item in files}
    for item in files:
        text = str(pq.read_table(item).to_pylist()) if item.suffix == ".parquet" else item.read_text()
        assert not [words for words in (mark, *answers) if words in text], item


@pytest.mark.promtool
@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool; on Debian: apt install prometheus")
def test_promtool_has_nothing_to_say_about_the_metrics(finished_run):
    metrics = (finished_run / "out/reports/runs/pipeline.prom").read_bytes()
    assert b"nightly_inference_last_run_exit_code 0" in metrics
    done = subprocess.run(["promtool", "check", "metrics"], input=metrics, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_timeline_stays_bounded_and_in_order():
    meter = Meter()
    for number in range(5000):
        meter.sample(running_rows=number)
    times = [point["t_s"] for point in meter.timeline]
    assert 1 < len(times) <= telemetry.TIMELINE_POINTS
    assert times == sorted(times)


def test_events_are_json_lines_and_old_days_go(tmp_path, monkeypatch, capsys):
    for day in range(1, 10):
        (tmp_path / f"2020-01-0{day}.jsonl").write_text("{}\n")
    monkeypatch.delenv("PIPELINE_LOG_LEVEL", raising=False)
    log = EventLog(tmp_path, "generate")
    log.debug("not shown")
    log.info("part saved", rows=64)
    log.warning("store is large", bytes=5)
    files = sorted(tmp_path.iterdir())
    assert len(files) == 7
    events = [json.loads(line) for line in files[-1].read_text().splitlines()]
    assert [(event["level"], event["message"], event["fields"]) for event in events] == [
        ("info", "part saved", {"rows": 64}),
        ("warning", "store is large", {"bytes": 5}),
    ]
    assert capsys.readouterr().err == "generate: store is large (bytes 5)\n"
    assert len(forget_old(tmp_path, keep=2)) == 5


def test_a_day_of_logs_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr("pipeline.core.logging.MAX_DAY_BYTES", 500)
    for number in range(50):
        EventLog(tmp_path, "x").info("event", number=number)
    assert sum(os.path.getsize(file) for file in tmp_path.iterdir()) < 800
