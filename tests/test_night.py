"""The night on a small DVC project of its own: lock, exit codes, record, history, notify, housekeeping."""

import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import psutil
import pytest
from chains import pipeline

from pipeline.core.errors import UsageError
from pipeline.core.hashing import PACKAGE
from pipeline.core.manifest import write_json
from pipeline.core.params import Params, parse_params
from pipeline.core.paths import Paths
from pipeline.report.night_page import write_night_page
from pipeline.runners import night_lock, run_record
from pipeline.runners.night import LOCK, in_words, judge, run_night

STAGE = '''
    """A stage that ends as mode.txt says; stands for all nine."""
    import json, sys, time
    from pathlib import Path
    from pipeline.core.errors import MissingInput
    from pipeline.core.paths import Paths
    from pipeline.core.telemetry import timed
    from pipeline.runners.interruption import interruptible

    mode = Path("mode.txt").read_text().strip()
    with timed(Paths(Path(".")), sys.argv[1]):
        if mode == "broken":
            raise MissingInput("data/raw/a.jsonl: no such file")
        if mode == "slow":
            with interruptible():
                time.sleep(60)
        Path("reports").mkdir(exist_ok=True)
        Path("reports/gate.json").write_text(json.dumps({"verdict": mode, "reasons": []}))
        Path("out.txt").write_text(mode)
'''
DVC_YAML = """
    stages:
      gate:
        cmd: python stage.py gate
        deps: [stage.py, mode.txt]
        outs: [out.txt]
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A DVC project without Git whose only stage ends as mode.txt says."""
    monkeypatch.setenv("PYTHONPATH", str(PACKAGE.parent))
    (tmp_path / "stage.py").write_text(textwrap.dedent(STAGE))
    (tmp_path / "dvc.yaml").write_text(textwrap.dedent(DVC_YAML))
    (tmp_path / "mode.txt").write_text("green")
    return Paths(tmp_path)


def night(paths, params=None, **options):
    said = []
    code = run_night(paths, params or Params(), write_page=write_night_page, collect_garbage=False, say=said.append, **options)
    return code, "\n".join(said)


def test_a_failed_night_tells_its_error_and_whose_results_lie_there(project):
    """Not last night's scores and verdict: on the terminal, on the page, in the record and to notify."""
    write_json(project.results / "manifest.json", {"outputs": [], "rows": {"into": 987, "out": 987, "rejected": 0, "failed": 0}})
    write_json(project.metrics_json, {"metrics": {"exact": {"mean": 0.5, "n_valid": 987}}, "control": {}})
    assert night(project)[0] == 0
    date = run_record.read_history(project)[0]["started"].replace("T", " ")[:16]
    (project.root / "mode.txt").write_text("broken")
    told = project.root / "told.txt"
    script = f"import os,sys; open({str(told)!r},'w').write(os.environ['PIPELINE_VERDICT'] + sys.stdin.read())"
    command = parse_params({"notify": {"command": [sys.executable, "-c", script]}})
    for options, code, named in (
        ({}, 2, "stage gate failed (exit 2)"),
        ({"refused": "params.yaml line 1: no"}, 2, "the night stopped (exit 2)"),
    ):
        exit_code, said = night(project, command, **options)
        assert exit_code == code
        words = said[said.index("failed    ") :]
        assert named in words
        assert f"last whole night of {date}" in words
        assert options.get("refused", "data/raw/a.jsonl: no such file") in words
        assert "gate  " not in words and "987" not in words
        assert told.read_text().startswith("redfailed")
        page = project.index_html.read_text()
        assert options.get("refused", "Stage gate failed, exit code 2.") in page
        assert "`pipeline night` goes on" in page and date in page and "987" not in page
        last = run_record.read_history(project)[-1]
        assert (last["verdict"], last["exit_code"], last["metrics"], last["rows"]) == ("failed", 2, {}, {})


@pytest.mark.parametrize(
    ("mode", "code", "said"), [("green", 6, "the night stopped (exit 6)"), ("broken", 2, "stage gate failed (exit 2)")]
)
def test_a_full_disk_takes_the_record_and_not_the_word(project, monkeypatch, mode, code, said):
    def full(*words, **about):
        raise OSError(errno.ENOSPC, "No space left on device", "reports/runs")

    monkeypatch.setattr(run_record, "write_run", full)
    (project.root / "mode.txt").write_text(mode)
    told = project.root / "told.txt"
    script = f"import os,sys; open({str(told)!r},'w').write(os.environ['PIPELINE_VERDICT'] + sys.stdin.read())"
    assert night(project, parse_params({"notify": {"command": [sys.executable, "-c", script]}}))[0] == code
    assert told.read_text().startswith(f"redfailed    {said}")


def test_a_params_file_that_cannot_be_read_is_a_failed_night(project):
    told = project.root / "told.txt"
    command = json.dumps([sys.executable, "-c", f"open({str(told)!r}, 'w').write('told')"])
    (project.root / "params.yaml").write_text(f"notify: {{command: {command}}}\ngenerate: {{temprature: 1}}\n")
    assert pipeline("night", "--root", project.root) == 2
    assert told.read_text() == "told"
    assert "did you mean generate.temperature?" in project.index_html.read_text()
    (project.root / "params.yaml").write_text("notify: [\n")
    assert pipeline("night", "--root", project.root) == 2
    assert [line["verdict"] for line in run_record.read_history(project)] == ["failed", "failed"]


def test_green_then_unchanged_then_red(project):
    code, said = night(project)
    assert code == 0
    assert said.splitlines()[0] == "Running stage 'gate':"
    assert "lock file" not in said
    code, said = night(project)
    assert code == 0
    assert "nothing changed since the last run" in said
    assert "Running" not in said
    (project.root / "mode.txt").write_text("red")
    told = project.root / "told.txt"
    script = f"import os,sys; open({str(told)!r},'w').write(os.environ['PIPELINE_VERDICT'] + sys.stdin.read())"
    params = parse_params({"notify": {"command": [sys.executable, "-c", script]}})
    assert night(project, params)[0] == 1
    assert told.read_text().startswith("red")
    history = run_record.read_history(project)
    assert [(line["exit_code"], line["verdict"], line["unchanged"]) for line in history] == [
        (0, "green", False), (0, "green", True), (1, "red", False)
    ]  # fmt: skip
    for run in history:
        record = json.loads((project.runs / run["run"] / "run.json").read_text())
        assert record["exit_code"] == run["exit_code"]
        assert record["git"] == {"commit": None, "dirty": None}
    assert "nightly_inference_last_run_exit_code 1\n" in (project.runs / "pipeline.prom").read_text()


@pytest.mark.parametrize(
    ("left_by_stage", "dvc_code", "signalled", "expected", "word"),
    [
        ({"exit_code": 0}, 0, None, 0, ""),
        ({"exit_code": 3}, 255, None, 3, "stage validate failed (exit 3)"),
        ({"exit_code": None}, 255, None, 6, "ran out of memory or disk, or was killed"),
        ({"exit_code": 143}, 255, signal.SIGTERM, 143, "goes on from what was saved"),
        (None, 255, None, 2, "doctor"),
    ],
)
def test_exit_codes_come_from_the_failing_stage(tmp_path, left_by_stage, dvc_code, signalled, expected, word):
    paths = Paths(tmp_path)
    if left_by_stage is not None:
        write_json(paths.work / "telemetry/validate.json", left_by_stage)
    outcome = judge(paths, (dvc_code, signalled))
    assert outcome.exit_code == expected
    assert word in "\n".join(in_words(outcome, paths))


def test_one_night_at_a_time_and_a_dead_one_is_named(tmp_path, monkeypatch):
    paths = Paths(tmp_path)
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    (tmp_path / ".dvc").mkdir()
    monkeypatch.setattr("pipeline.runners.night.dvc", lambda *words: None)
    monkeypatch.setattr("pipeline.runners.night.reproduce", lambda paths, say: (0, None))
    lock = paths.work / LOCK
    with night_lock.held(lock, "night"):
        assert night_lock.holder(lock)[0] == "held"
        with pytest.raises(UsageError, match="still running here"):
            night(paths)
    assert night_lock.holder(lock) == ("free", {})
    dies = "import os,sys; from pathlib import Path; from pipeline.runners.night_lock import held\n"
    dies += "with held(Path(sys.argv[1]), 'night'): os._exit(9)"
    subprocess.run([sys.executable, "-c", dies, str(lock)], cwd=PACKAGE.parent)
    state, words = night_lock.holder(lock)
    assert state == "stale"
    code, said = night(paths)
    assert code == 0
    assert f"process {words['pid']}" in said
    assert night_lock.holder(lock)[0] == "free"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGKILL, -9)])
def test_a_signal_reaches_the_stage_and_nothing_lives_on(project, number, code):
    (project.root / "mode.txt").write_text("slow")
    script = (
        "import sys; from pathlib import Path; from pipeline.core.params import Params; from pipeline.core.paths import Paths\n"
        "from pipeline.runners.night import run_night\n"
        "sys.exit(run_night(Paths(Path(sys.argv[1])), Params(), write_page=lambda p: None, collect_garbage=False, say=print))"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(project.root)], stdout=subprocess.PIPE, text=True)
    started = project.work / "telemetry/gate.json"
    for _ in range(600):
        if started.exists():
            break
        time.sleep(0.05)
    stages = [pid for pid in psutil.pids() if _works_in(pid, project.root) and pid != process.pid]
    assert stages
    process.send_signal(number)
    said, _ = process.communicate(timeout=30)
    assert process.returncode == code
    assert "goes on from what was saved" in said or number == signal.SIGKILL
    for _ in range(200):
        if not any(_works_in(pid, project.root) for pid in stages):
            break
        time.sleep(0.05)
    assert not any(_works_in(pid, project.root) for pid in stages)
    if number == signal.SIGKILL:  # the stage ended as it does at SIGTERM, and the next night runs
        assert json.loads(started.read_text())["exit_code"] == 143
        (project.root / "mode.txt").write_text("green")
        assert night(project)[0] == 0


def test_a_night_outside_a_project_says_so(tmp_path):
    with pytest.raises(UsageError, match=r"no dvc\.yaml"):
        night(Paths(tmp_path))


def _works_in(pid, folder):
    try:
        return os.readlink(f"/proc/{pid}/cwd") == str(folder)
    except OSError:
        return False
