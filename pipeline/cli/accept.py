"""`pipeline accept`."""

from __future__ import annotations

import click

from pipeline.cli.options import root_option
from pipeline.core.errors import UsageError
from pipeline.core.manifest import read_json, write_json
from pipeline.core.paths import Paths
from pipeline.evaluation.baseline import as_json


@click.command()
@root_option
@click.option("--why", metavar="TEXT", help="Why this run is good enough; kept in the baseline. Needed when the gate is red.")
def accept(paths: Paths, why: str | None) -> None:
    """Make this run's control-set scores the baseline of the gate (reports/baseline.json, a small file for Git).

    \b
    Example:
        python -m pipeline accept --why "new model, answers read by two people"
    """
    verdict = read_json(paths.gate_json, made_by="gate")
    if verdict["verdict"] == "red" and not why:
        raise UsageError(f"the gate is red ({'; '.join(verdict['reasons'])}); to accept this run all the same, say --why")
    baseline = as_json(paths, why)
    write_json(paths.baseline_json, baseline)
    rows = len(set(baseline["ids"]))
    click.echo(
        f"accepted: {rows} control rows, {len(baseline['scores'])} metrics -> {paths.relative(paths.baseline_json)}; commit it with Git"
    )
