"""`pipeline verify`."""

from __future__ import annotations

import time

import click

from pipeline.cli.options import root_option
from pipeline.core.errors import UsageError, VerificationFailed
from pipeline.core.paths import Paths

SHOWN = 200


@click.command()
@root_option
def verify(paths: Paths) -> None:
    """Hash again all that the manifests name, and walk their chain. Each difference is one line; exit code 5.

    While a run writes there, its half-written tables are no differences: the command names the run and exits with 2.

    \b
    Example:
        python -m pipeline verify --root /tmp/answers
    """
    from pipeline.runners import night_lock
    from pipeline.runners.checkpoint import present_checkpoint
    from pipeline.runners.local import LOCK
    from pipeline.runners.verify import verify as check

    for file in (paths.work / "night.lock", paths.work / LOCK):
        state, words = night_lock.holder(file)
        if state == "held":
            raise UsageError(
                f"{night_lock.in_words(words)} is writing here; verify when it has ended (pipeline status shows how far it is)"
            )
    start = time.monotonic()
    verdict = check(paths, present_checkpoint(paths))
    for note in verdict.notes:
        click.echo(f"note: {note}", err=True)
    for line in verdict.differences[:SHOWN]:
        click.echo(line)
    if verdict.differences:
        raise VerificationFailed(f"{len(verdict.differences):,} differences in {verdict.files:,} files")
    click.echo(f"good: {verdict.files:,} files, {verdict.bytes:,} bytes, {time.monotonic() - start:.1f} s")
