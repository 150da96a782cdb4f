"""What is wrong with this machine or this project."""

from __future__ import annotations

import json

import click

from pipeline.cli.options import root_option
from pipeline.core.paths import Paths


@click.command()
@root_option
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
def doctor(paths: Paths, as_json: bool) -> int:
    """Look for what would spoil the night; each line ok, warning or error with a way out. Exit 1 on an error.

    \b
    Example:
        python -m pipeline doctor
    """
    from pipeline.runners.doctor import as_data, examine

    findings = examine(paths)
    if as_json:
        click.echo(json.dumps(as_data(findings), indent=2, ensure_ascii=False))
    else:
        for finding in findings:
            click.echo(f"{finding.level:<8}{finding.check:<10}{finding.words}")
            if finding.way_out and finding.level != "ok":
                click.echo(f"{'':<18}-> {finding.way_out}")
    return 1 if any(finding.level == "error" for finding in findings) else 0
