"""What cron calls, and what one asks while it runs."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import click

from pipeline.cli.options import read_params, root_option
from pipeline.core.errors import ParamsError
from pipeline.core.manifest import read_json_or_empty
from pipeline.core.params import readable_params
from pipeline.core.paths import Paths


@click.command()
@root_option
@click.option("--gc", is_flag=True, help="Afterwards let DVC forget cached files that no commit and no experiment names.")
def night(paths: Paths, gc: bool) -> int:
    """One night: lock, dvc repro, record, night page, notify.command when red.

    \b
    Exit codes: 0 good, 1 gate red, 2 DVC or params, 3 data, 4 model, 6 disk or memory, 129/130/143 interrupted.

    \b
    Example:
        python -m pipeline night
    """
    from pipeline.report.night_page import write_night_page
    from pipeline.runners.night import run_night

    refused = None
    try:
        params = read_params(None, (), paths.root)
    except ParamsError as error:
        params, refused = readable_params(paths.root / "params.yaml"), str(error)
    page = partial(write_night_page, language=params.report.language)
    return run_night(paths, params, write_page=page, collect_garbage=gc, say=click.echo, refused=refused)


@click.command()
@root_option
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def status(paths: Paths, as_json: bool) -> None:
    """What runs here now, how far it is, and how the last run ended.

    \b
    Example:
        python -m pipeline status
    """
    about = current_state(paths)
    if as_json:
        click.echo(json.dumps(about, indent=2, ensure_ascii=False))
        return
    for line in state_lines(about):
        click.echo(line)


def current_state(paths: Paths) -> dict[str, Any]:
    """The night's lock, the running stage's progress, the last run."""
    from pipeline.runners import night_lock, run_record
    from pipeline.runners.night import LOCK

    state, words = night_lock.holder(paths.work / LOCK)
    history = run_record.read_history(paths)
    return {
        "night": {"state": state, **words},
        "progress": _progress(paths.work / "status.json"),
        "last_run": {key: history[-1].get(key) for key in ("run", "command", "started", "wall_s", "exit_code", "verdict")}
        if history
        else None,
    }


def state_lines(about: dict[str, Any]) -> list[str]:
    """The same for people."""
    from pipeline.runners.night_lock import in_words

    night, progress, last = about["night"], about["progress"], about["last_run"]
    lines = {
        "held": [f"{in_words(night)} is running"],
        "stale": [f"{in_words(night)} died; the next `pipeline night` goes on from what it saved"],
    }.get(night["state"], ["no night is running"])
    if progress:
        total = f" of {progress['total']:,}" if progress.get("total") else ""
        rate = progress["done"] / progress["elapsed_s"] if progress.get("elapsed_s") else 0.0
        left = f", about {(progress['total'] - progress['done']) / rate:,.0f} s left" if progress.get("total") and rate else ""
        tokens = f", {progress['tokens'] / progress['elapsed_s']:,.0f} tokens/s" if progress.get("tokens") and progress["elapsed_s"] else ""
        alive = "" if progress["alive"] else " (that process is gone)"
        if progress["state"] == "running":
            lines.append(f"{progress['stage']}: {progress['done']:,}{total} {progress['unit']}{tokens}{left}{alive}")
        elif not last or last["exit_code"] not in (0, 1):  # a whole run ends with stages that show no progress
            lines.append(f"last stage: {progress['stage']}, {progress['state']} with {progress['done']:,}{total} {progress['unit']}")
    if last:
        when = last["started"].replace("T", " ")[:16]
        lines.append(f"last run: {last['command']} of {when}, {last['verdict']}, exit {last['exit_code']}, {last['wall_s']:,.0f} s")
    return lines


def _progress(file: Path) -> dict[str, Any] | None:
    progress = read_json_or_empty(file)
    if not progress:
        return None
    progress["seconds_ago"] = round(time.time() - progress["time"], 1)
    progress["alive"] = Path(f"/proc/{progress['pid']}").exists()
    return progress
