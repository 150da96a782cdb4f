"""The night that cron calls: one at a time, `dvc repro`, then the record, the page, a word to whoever should know."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from pipeline.core import errors, telemetry
from pipeline.core.errors import BUG_EXIT_CODE, UsageError
from pipeline.core.logging import EventLog, forget_old
from pipeline.core.manifest import read_json_or_empty
from pipeline.core.params import Params
from pipeline.core.paths import Paths
from pipeline.runners import night_lock, run_record
from pipeline.runners.interruption import catch, die_with_parent, release
from pipeline.runners.machine import Machine
from pipeline.runners.summary import summary_lines, verdict_lines

LOCK = "night.lock"
NOTIFY_LIMIT_S = 120
KILLED_EXIT_CODE = 6  # a stage that left no exit code was killed, as the kernel does when memory runs out
DVC_EXIT_CODE = 2  # DVC itself refused: dvc.yaml, a missing dependency, its own lock
# What DVC prints about itself: its lock file, commands that the stages' own lines tell of, hints about Git and remotes.
DVC_HINTS = ("Generating lock file", "Updating lock file", "> python -m pipeline ", "To track the changes with git", "\tgit add",
             "To enable auto staging", "\tdvc config core.autostage", "Use `dvc push`")  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """exit_code as in the contract; stage: the one that failed; error: its words; unchanged: nothing but the model check ran."""

    exit_code: int
    stage: str | None = None
    error: str | None = None
    unchanged: bool = False

    @property
    def whole(self) -> bool:
        """Did every stage end well, whatever the gate says?"""
        return self.exit_code in (0, 1)


def run_night(
    paths: Paths,
    params: Params,
    *,
    write_page: Callable[[Paths], object],
    collect_garbage: bool,
    say: Callable[[str], None],
    refused: str | None = None,
) -> int:
    """Run one night and return its exit code. write_page: makes reports/index.html. Raises UsageError while another night runs.

    refused: what is wrong with params.yaml; then nothing runs, and the night is recorded and told of as failed.
    """
    check_project(paths)
    with night_lock.held(paths.work / LOCK, "night") as died:
        log = EventLog(paths.logs, "night")
        if died:
            say(f"{night_lock.in_words(died)} ended without a word; going on from what it saved")
            log.warning("last night died", pid=died.get("pid"))
        started = time.time()
        telemetry.clear(paths.work)
        outcome = Outcome(UsageError.exit_code, error=refused) if refused else judge(paths, reproduce(paths, say))
        failure = None if outcome.whole else {"stage": outcome.stage, "error": outcome.error, "advice": advice(outcome)}
        try:
            run_record.write_run(paths, command="night", started=started, exit_code=outcome.exit_code, failure=failure)
            write_page(paths)
        except OSError as error:  # the disk that ended the night may have no room for its record either
            code, words = errors.outcome(error)
            say(f"the night's record or page could not be written: {words}")
            outcome = Outcome(code, error=words) if outcome.whole else outcome
        log.info("night ended", exit_code=outcome.exit_code, stage=outcome.stage)
        for line in [*in_words(outcome, paths), *how_to_keep(outcome, paths)]:
            say(line)
        if outcome.exit_code:
            notify(params, paths, outcome, log)
        housekeeping(paths, collect_garbage, log)
    return outcome.exit_code


def check_project(paths: Paths) -> None:
    """Raises UsageError when this is no DVC project; tells DVC when there is no Git above it."""
    if not (paths.root / "dvc.yaml").is_file():
        raise UsageError(f"{paths.root}: no dvc.yaml here; call `pipeline night` in the project, or use `pipeline run` for files anywhere")
    if not (paths.root / ".dvc").is_dir():
        dvc(paths, "init", "--quiet", *([] if has_git(paths.root) else ["--no-scm"]))
    elif not has_git(paths.root):
        dvc(paths, "config", "--local", "core.no_scm", "true")
    elif "no_scm" in _text(paths.root / ".dvc/config.local"):
        dvc(paths, "config", "--local", "--unset", "core.no_scm")


def has_git(root: Path) -> bool:
    """Does a Git working tree hold this folder?"""
    return any((folder / ".git").exists() for folder in (root, *root.parents))


def reproduce(paths: Paths, say: Callable[[str], None]) -> tuple[int, int | None]:
    """`dvc repro`, telling what its stages print. Returns its exit code, and the signal that was passed on to it.

    Where rows failed or were not reached last time, stage generate is called first: DVC itself knows of no failed row.
    What was answered comes from the store.
    """
    again = ("--force", "--single-item", "generate")
    code, signalled = _dvc_repro(paths, say, *again) if any_failed_row(paths) else (0, None)
    return (code, signalled) if code or signalled else _dvc_repro(paths, say)


def any_failed_row(paths: Paths) -> bool:
    rows = read_json_or_empty(paths.completions / "manifest.json").get("rows")
    return bool((rows or {}).get("failed"))


def is_news(line: str) -> bool:
    """Is a line of `dvc repro` worth a place in the night's log? Stages that did not change are told of by their absence."""
    return bool(line.strip()) and not line.startswith(DVC_HINTS) and not line.rstrip().endswith("didn't change, skipping")


def _dvc_repro(paths: Paths, say: Callable[[str], None], *words: str) -> tuple[int, int | None]:
    process = subprocess.Popen(
        dvc_command("repro", *words), cwd=paths.root, env={**dvc_environment(), "PYTHONUNBUFFERED": "1"}, start_new_session=True,
        stdout=subprocess.PIPE, text=True, errors="replace", preexec_fn=die_with_parent,
    )  # fmt: skip
    assert process.stdout is not None
    passed_on: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        passed_on.append(number)
        os.killpg(process.pid, number)

    before = catch(pass_on)
    try:
        for line in process.stdout:
            if is_news(line):
                say(line.rstrip())
        code = process.wait()
    finally:
        release(before)
    return code, passed_on[0] if passed_on else None


def judge(paths: Paths, ended: tuple[int, int | None]) -> Outcome:
    """What became of `dvc repro`: DVC says 255 for any failure, the stages left their own exit codes."""
    code, interrupted_by = ended
    ran = telemetry.collected(paths.work)
    failed = [(stage, data.get("exit_code")) for stage, data in ran.items() if data.get("exit_code") != 0]
    if interrupted_by is not None:
        return Outcome(128 + interrupted_by, failed[-1][0] if failed else None)
    if failed:
        stage, own = failed[-1]
        return Outcome(KILLED_EXIT_CODE if own is None else int(own), stage, ran[stage].get("error"))
    if code != 0:
        return Outcome(DVC_EXIT_CODE)
    return Outcome(1 if run_record.verdict(paths, 0) == "red" else 0, unchanged=not set(ran) - {"model"})


def in_words(outcome: Outcome, paths: Paths) -> list[str]:
    """The lines after the night: what ran and its scores, or that nothing had to, or what failed and what to do."""
    if outcome.unchanged:
        last = run_record.last_whole(run_record.read_history(paths))
        since = f" of {run_record.minute(last)}" if last else ""
        return [f"nothing changed since the last run{since}: the model was checked, nothing else had to run", *verdict_lines(paths)]
    if outcome.whole:
        return ["", *summary_lines(paths)]
    error = [f"error     {outcome.error}"] if outcome.error else []
    last = run_record.last_whole(run_record.read_history(paths))
    of = f" of {run_record.minute(last)}" if last else ""
    kept = [f"data/results still holds the last whole night{of}"] if (paths.results / "manifest.json").is_file() else []
    return [f"failed    {what_failed(outcome)}", *error, f"do        {advice(outcome)}", *kept, f"night     {paths.index_html}"]


def what_failed(outcome: Outcome) -> str:
    """Which stage failed, and how."""
    where = f"stage {outcome.stage} " if outcome.stage else ""
    if outcome.exit_code > 128:
        return f"{where}interrupted (exit {outcome.exit_code})"
    if outcome.stage is None:
        return f"{'the night' if outcome.error else '`dvc repro`'} stopped (exit {outcome.exit_code})"
    if outcome.exit_code == KILLED_EXIT_CODE:
        return f"{where}ran out of memory or disk, or was killed (exit {KILLED_EXIT_CODE})"
    return f"{where}failed (exit {outcome.exit_code})"


def advice(outcome: Outcome) -> str:
    """What to type."""
    if outcome.exit_code > 128:
        return "`pipeline night` goes on from what was saved"
    if outcome.stage is None and not outcome.error:
        return "`pipeline doctor` looks for the cause of what dvc said"
    if outcome.exit_code == KILLED_EXIT_CODE and not outcome.error:
        return "`pipeline doctor` shows memory and disk; `pipeline night` goes on from what was saved"
    if outcome.exit_code == BUG_EXIT_CODE:
        return f"`pipeline --debug {outcome.stage}` shows where"
    return "mend that, then `pipeline night` goes on from there"


def how_to_keep(outcome: Outcome, paths: Paths) -> list[str]:
    """The command that makes this night a revision to go back to; nothing where Git has it already."""
    changed = Machine().run("git", "-C", str(paths.root), "status", "--porcelain", "dvc.lock")
    if outcome.unchanged or not outcome.whole or not changed:
        return []
    return ["keep      git add dvc.lock reports/metrics.json && git commit -m night    (for compare, metrics diff and experiments)"]


def notify(params: Params, paths: Paths, outcome: Outcome, log: EventLog) -> None:
    """Run notify.command without a shell: the summary on its standard input, the verdict in its environment."""
    if not params.notify.command:
        return
    words = "\n".join(in_words(outcome, paths)) + "\n"
    verdict = run_record.verdict(paths, outcome.exit_code) if outcome.whole else "red"
    about = {"PIPELINE_EXIT_CODE": str(outcome.exit_code), "PIPELINE_VERDICT": verdict,
             "PIPELINE_PAGE": str(paths.index_html)}  # fmt: skip
    try:
        done = subprocess.run(
            list(params.notify.command), input=words, text=True, cwd=paths.root, env={**os.environ, **about}, timeout=NOTIFY_LIMIT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        log.error("notify.command could not be run", kind=type(error).__name__, command=params.notify.command[0])
        return
    log.info("notified", command=params.notify.command[0], exit_code=done.returncode)


def housekeeping(paths: Paths, collect_garbage: bool, log: EventLog) -> None:
    """Old logs go; with --gc, DVC's cache keeps what the workspace, any commit or any experiment names."""
    forget_old(paths.logs)
    if collect_garbage:
        everywhere = ["--all-commits", "--all-experiments"] if has_git(paths.root) else []
        done = dvc(paths, "gc", "--workspace", *everywhere, "--force", "--quiet")
        log.info("dvc gc", exit_code=done.returncode)


def dvc(paths: Paths, *words: str) -> subprocess.CompletedProcess[str]:
    """A short DVC command, its words kept."""
    return subprocess.run(dvc_command(*words), cwd=paths.root, env=dvc_environment(), capture_output=True, text=True)


def dvc_command(*words: str) -> list[str]:
    return [sys.executable, "-m", "dvc", *words]


def dvc_environment() -> dict[str, Any]:
    """`python` in dvc.yaml is the interpreter that runs this, with or without an activated environment."""
    folder = str(Path(sys.executable).parent)
    return {**os.environ, "PATH": os.pathsep.join([folder, os.environ.get("PATH", os.defpath)]), "DVC_NO_ANALYTICS": "1"}


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.is_file() else ""
