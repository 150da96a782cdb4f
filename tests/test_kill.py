"""Killed at random moments and started again: nothing lost, nothing twice, the same bytes. Signals save and say how to go on."""

import os
import signal
import subprocess
import sys
import time

import kill_harness
import pyarrow.parquet as pq
import pytest
from chains import manifest, results, rows, stored_answers, tree, write_rows

from pipeline.core.errors import UsageError
from pipeline.runners.interruption import Interruption, interruptible
from pipeline.runners.lock import folder_lock

HOUSE = kill_harness.HOUSE


def command(file, out, checkpoint, *options):
    settings = [item for option in ("generate.kv_memory=8000000", "evaluate.bootstrap=10", *options) for item in ("-S", option)]
    return [sys.executable, "-m", "pipeline", "run", str(file), "--out", str(out), "--model", str(checkpoint), *settings]


def start(args, **env):
    env = {**os.environ, "PYTHONPATH": str(HOUSE), "OMP_NUM_THREADS": "1", **env}
    return subprocess.Popen(args, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def wait_for_answers(out, process, count=1):
    """Until the store holds that many answers."""
    for _ in range(1200):
        if stored_answers(out) >= count or process.poll() is not None:
            return
        time.sleep(0.05)
    raise AssertionError("no answer was stored within a minute")


def test_kills_at_random_moments_leave_no_trace(tiny_checkpoint):
    found = kill_harness.run(kill_harness.local_project, tiny_checkpoint, kills=2, row_count=24, tokens=24, seed=4)
    assert found.equal
    assert found.verified
    assert found.stored == found.needed  # no answer is in the store twice


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_and_says_how_to_go_on(tmp_path, tiny_checkpoint, number, code):
    file = write_rows(tmp_path / "in.jsonl", rows(24))
    args = command(file, tmp_path / "out", tiny_checkpoint, "generate.max_new_tokens=100", "generate.checkpoint_every_s=0.1",
                   "generate.max_running_rows=2", "generate.ignore_eos=true")  # fmt: skip
    process = start(args)
    wait_for_answers(tmp_path / "out", process)
    process.send_signal(number)
    said = process.communicate(timeout=120)[1]
    assert process.returncode == code, said
    assert "the same command goes on" in said
    assert "Traceback" not in said
    saved = stored_answers(tmp_path / "out")
    assert 0 < saved < 21
    assert not (tmp_path / "out/data/completions").exists()
    (begun,) = (tmp_path / "out/.work/completions/runs").glob("*.parquet")
    assert all(pq.read_table(begun)["token_ids"].to_pylist())  # of the rows that were running, what is drawn so far
    if number == signal.SIGINT:
        return  # going on is the same after either
    assert subprocess.run(args, env={**os.environ, "PYTHONPATH": str(HOUSE)}, capture_output=True).returncode == 0
    assert len(results(tmp_path / "out")) == 24
    assert manifest(tmp_path / "out")["rows"]["out"] == 24
    assert stored_answers(tmp_path / "out") == 21  # three of 24 rows repeat a text
    assert not begun.exists()


def test_two_writers_of_one_folder_are_refused(tmp_path):
    with (
        folder_lock(tmp_path / "run.lock"),
        pytest.raises(UsageError, match=str(os.getpid())),
        folder_lock(tmp_path / "run.lock", wait_s=0),
    ):
        pass
    with folder_lock(tmp_path / "run.lock", wait_s=0):
        pass


def test_two_folders_share_a_store_at_once(tmp_path, tiny_checkpoint):
    file = write_rows(tmp_path / "in.jsonl", rows(12))
    options = ("generate.max_new_tokens=40", f"generate.store={tmp_path / 'store'}", "generate.checkpoint_every_s=0.1")
    both = [start(command(file, tmp_path / name, tiny_checkpoint, *options)) for name in ("a", "b")]
    assert [process.wait(timeout=180) for process in both] == [0, 0], [process.stderr.read() for process in both]
    assert tree(tmp_path / "a/data/results") == tree(tmp_path / "b/data/results")


def test_a_stage_ends_when_the_dvc_above_it_dies(tmp_path):
    """SIGTERM to dvc leaves its stages as orphans: they must notice."""
    child = (
        "import os, signal, sys, time\n"
        "from pipeline.runners.interruption import interruptible\n"
        "from pipeline.core.errors import Interrupted\n"
        "try:\n"
        "    with interruptible():\n"
        "        print(os.getpid(), flush=True)\n"
        "        time.sleep(60)\n"
        "except Interrupted as error:\n"
        f"    open({str(tmp_path / 'said')!r}, 'w').write(f'{{error.exit_code}} {{error}}')\n"
    )
    parent = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {child!r}]); time.sleep(60)"
    env = {**os.environ, "PYTHONPATH": str(HOUSE), "DVC_STAGE": "generate"}
    process = subprocess.Popen([sys.executable, "-c", parent], env=env, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert int(process.stdout.readline()) > 0
    process.kill()
    process.wait()
    for _ in range(400):
        if (tmp_path / "said").exists() and (tmp_path / "said").read_text():
            break
        time.sleep(0.05)
    assert (tmp_path / "said").read_text().startswith("143 ")


@pytest.mark.parametrize("damage", ["cut", "zero", "newer"])
def test_a_damaged_or_newer_store_is_told_and_loses_nothing(finished_run, tmp_path, tiny_checkpoint, capsys, damage):
    import shutil

    from chains import run_chain

    shutil.copytree(finished_run / "out", tmp_path / "out")
    before = tree(tmp_path / "out/data")
    store = tmp_path / "out/.work/completions"
    part = next((store / "parts").iterdir())
    if damage == "newer":
        (store / "format.json").write_text('{"format": 2}')
    else:
        part.write_bytes(bytes(part.stat().st_size) if damage == "zero" else part.read_bytes()[:100])
    shutil.rmtree(tmp_path / "out/data/completions")
    code = run_chain(finished_run / "in.jsonl", tmp_path / "out", tiny_checkpoint)
    said = capsys.readouterr().err
    if damage == "newer":
        assert code == 2
        assert "format 2" in said
    else:
        assert code == 0
        assert "set aside" in said
        assert tree(tmp_path / "out/data") == before


RETRY_STAGE = """
import json, pathlib
pathlib.Path("data/completions").mkdir(parents=True, exist_ok=True)
failed = int(pathlib.Path("failed.txt").read_text())
pathlib.Path("data/completions/manifest.json").write_text(json.dumps({"rows": {"failed": failed}}))
with open("calls.txt", "a") as calls:
    calls.write("x")
"""
RETRY_DVC = "stages: {generate: {cmd: python stage.py, deps: [stage.py], outs: [data/completions]}}\n"


def test_a_night_asks_failed_rows_again_though_nothing_else_changed(tmp_path):
    from pipeline.core.paths import Paths
    from pipeline.runners.night import check_project, reproduce

    (tmp_path / "stage.py").write_text(RETRY_STAGE)
    (tmp_path / "dvc.yaml").write_text(RETRY_DVC)
    paths = Paths(tmp_path)
    check_project(paths)
    for failed, calls in ((3, "x"), (0, "xx"), (0, "xx")):
        (tmp_path / "failed.txt").write_text(str(failed))
        assert reproduce(paths, print) == (0, None)
        assert (tmp_path / "calls.txt").read_text() == calls


def test_a_hangup_that_nohup_ignores_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruptible():
            os.kill(os.getpid(), signal.SIGHUP)
        with Interruption() as interruption:
            os.kill(os.getpid(), signal.SIGHUP)
        assert not interruption.stop()
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        with Interruption() as interruption:
            os.kill(os.getpid(), signal.SIGHUP)
        assert str(interruption.error("saved")) == "SIGHUP: saved"
        assert interruption.error("saved").exit_code == 129
    finally:
        signal.signal(signal.SIGHUP, before)
