"""pipeline label export | import: bad cases out to people, their verdicts back in."""

from __future__ import annotations

from pathlib import Path

import click

from pipeline.cli.options import params_options, read_params, root_option
from pipeline.core.paths import Paths
from pipeline.report import fine_tuning, label_exchange


@click.group()
def label() -> None:
    """Verdicts of people on bad cases; the next report listens to them.

    \b
    Example:
        python -m pipeline label export labels.csv
    """


@label.command("export")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--as", "kind", type=click.Choice(["cases", "control", "messages"]), default="cases",
    help="cases: to be judged. control: add corrected answers to a control file. messages: corrected answers for fine-tuning.",
)  # fmt: skip
@click.option("--limit", type=click.IntRange(1), default=200, show_default=True, help="Cases at most.")
@click.option("--per-group", type=click.IntRange(1), default=1, show_default=True, help="Cases of each group of similar failures.")
@root_option
@params_options
def export(
    file: Path, kind: str, limit: int, per_group: int, paths: Paths, params_file: Path | None, overrides: tuple[str, ...]
) -> None:  # fmt: skip
    """Write the ranked cases to FILE (.csv or .jsonl) with blank columns verdict, corrected, cause.

    \b
    Example:
        python -m pipeline label export labels.csv --limit 50
        python -m pipeline label export data/control/labelled.jsonl --as control
        python -m pipeline label export train.jsonl --as messages
    """
    if kind == "cases":
        rows = label_exchange.cases(paths, limit=limit, per_group=per_group)
        label_exchange.write_rows(file, rows, label_exchange.COLUMNS)
        click.echo(f"{len(rows)} cases in {file}; fill in verdict (good or bad), corrected, cause, then `pipeline label import {file}`")
        return
    pairs = label_exchange.corrected(paths)
    if kind == "control":
        added = label_exchange.append_rows(file, label_exchange.as_control(pairs))
        click.echo(f"{added} corrected answers added to {file}; `pipeline accept` makes them part of the baseline after the next run")
        return
    rows = fine_tuning.as_messages(pairs, read_params(params_file, overrides, paths.root))
    label_exchange.write_rows(file, rows, ("messages",))
    click.echo(f"{len(rows)} conversations in {file}")


@label.command("import")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--skip-unknown", is_flag=True, help="Leave out ids that are not among the rows of this run.")
@root_option
def import_(file: Path, skip_unknown: bool, paths: Paths) -> None:
    """Check the verdicts in FILE (.csv or .jsonl; id and verdict are enough) and keep them in data/assets/labels.jsonl.

    \b
    Example:
        python -m pipeline label import labels.csv
    """
    counts = label_exchange.take_in(paths, file, skip_unknown=skip_unknown)
    click.echo(
        f"{counts['read']} verdicts read, {counts['new']} new, {counts['already_there']} already there, {counts['unknown']} unknown; "
        "`pipeline report` uses them"
    )
