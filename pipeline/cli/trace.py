"""`pipeline trace`."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from pipeline.cli.options import root_option
from pipeline.cli.terminal import shown
from pipeline.core.errors import VerificationFailed
from pipeline.core.paths import Paths


@click.command()
@click.argument("row_id", metavar="ID")
@root_option
@click.option("--replay", "again", is_flag=True, help="Generate the row again, alone, and compare tokens; exit code 5 when they differ.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def trace(row_id: str, paths: Paths, again: bool, as_json: bool) -> None:
    """One row's whole life: source, cleaning, prompt, answer, scores, verdicts, and what made them.

    ID is the row's id, or FILE:LINE.

    \b
    Example:
        python -m pipeline trace capital-12 --root /tmp/answers --replay
    """
    from pipeline.runners.trace import as_text, lives, provenance

    found, made_by = lives(row_id, paths), provenance(paths)
    replays = []
    if again:
        from pipeline.runners.replay import replay, replay_line

        replays = replay(found, paths)
    if as_json:
        data = {"rows": [asdict(life) for life in found], "made_by": made_by, "replay": replays}
        click.echo(json.dumps(data, ensure_ascii=False, indent=2))
    else:
        for life in found:
            click.echo(shown("\n".join(as_text(life, made_by))))
            for item in replays:
                if item["ordinal"] == life.ordinal:
                    click.echo(replay_line(item))
    if differing := [item for item in replays if not item["equal"]]:
        raise VerificationFailed(f"{len(differing)} of {len(replays)} answers came out differently")
