"""`pipeline accept`."""

from __future__ import annotations

import json

import click

from pipeline.cli.options import root_option
from pipeline.core.errors import MissingInput, UsageError
from pipeline.core.manifest import write_json
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
    if not paths.gate_json.is_file():
        raise MissingInput(f"{paths.gate_json}: not there yet; run the chain once before accepting it")
    verdict = json.loads(paths.gate_json.read_text(encoding="utf-8"))
    if verdict["verdict"] == "red" and not why:
        raise UsageError(f"the gate is red ({'; '.join(verdict['reasons'])}); to accept this run all the same, say --why")
    baseline = as_json(paths, why)
    write_json(paths.baseline_json, baseline)
    rows = len(set(baseline["ids"]))
    click.echo(
        f"accepted: {rows} control rows, {len(baseline['scores'])} metrics -> {paths.relative(paths.baseline_json)}; commit it with Git"
    )
