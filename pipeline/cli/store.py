"""`pipeline store`: what the completion store holds, and forgetting."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click

from pipeline.cli.options import params_options, read_params, root_option
from pipeline.core.errors import UsageError
from pipeline.core.paths import Paths

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


@click.group()
def store() -> None:
    """The completion store: answers kept over nights.

    \b
    Example:
        python -m pipeline store stats
    """


@store.command()
@root_option
@params_options
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def stats(paths: Paths, params_file: Path | None, overrides: tuple[str, ...], as_json: bool) -> None:
    """How many answers there are, by model, and how much room they take.

    \b
    Example:
        python -m pipeline store stats --root /tmp/answers
    """
    from pipeline.runners import store_care

    about = store_care.stats(_open(paths, params_file, overrides))
    click.echo(json.dumps(about, indent=2) if as_json else "\n".join(_lines(about)))


@store.command()
@root_option
@params_options
@click.option("--older-than", type=float, metavar="DAYS", help="Answers made more than so many days ago.")
@click.option("--max-bytes", metavar="SIZE", help="The oldest ones, until the rest fits: 5GB, 200MB, 1000000.")
@click.option("--model-digest", metavar="HEX", help="Answers of one model: the first digits of its weights digest (store stats shows it).")
@click.option("--id", "row_id", help="Every answer to the prompts that this row has in the tables of the root.")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
def prune(
    paths: Paths, params_file: Path | None, overrides: tuple[str, ...], older_than: float | None, max_bytes: str | None,
    model_digest: str | None, row_id: str | None, dry_run: bool,
) -> None:  # fmt: skip
    """Forget answers by age, size, model or row. They are generated again when they are asked for again.

    \b
    Examples:
        python -m pipeline store prune --older-than 30 --max-bytes 5GB
        python -m pipeline store prune --id customer-4711
    """
    from pipeline.runners import store_care

    if older_than is None and max_bytes is None and model_digest is None and row_id is None:
        raise UsageError("store prune: say what to forget: --older-than, --max-bytes, --model-digest or --id")
    prompts = store_care.prompts_of_id(row_id, paths) if row_id is not None else None
    gone = store_care.prune(
        _open(paths, params_file, overrides), older_than_days=older_than, max_bytes=_bytes(max_bytes), model=model_digest,
        prompts=prompts, dry_run=dry_run,
    )  # fmt: skip
    word = "would forget" if dry_run else "forgot"
    click.echo(f"{word} {gone.answers:,} answers; {gone.parts:,} whole parts, {gone.bytes:,} bytes")


def _open(paths: Paths, params_file: Path | None, overrides: tuple[str, ...]) -> Any:
    from pipeline.runners.completion_store import CompletionStore

    return CompletionStore(paths.store(read_params(params_file, overrides, paths.root).generate.store))


def _bytes(text: str | None) -> int | None:
    if text is None:
        return None
    number = text.rstrip("BKMGTbkmgt")
    unit = text[len(number) :].upper()
    try:
        return int(float(number) * UNITS[unit])
    except (ValueError, KeyError):
        raise UsageError(f"--max-bytes {text}: expected a number with B, KB, MB, GB or TB") from None


def _lines(about: dict[str, Any]) -> list[str]:
    lines = [about["folder"], _line("all", about)]
    lines += [_line(model[:12], item) for model, item in about["models"].items()]
    if about["damaged_parts"] or about["orphan_bytes"]:
        lines.append(
            f"{about['damaged_parts']} damaged parts set aside, {about['orphan_bytes']:,} bytes left by crashes; prune removes them"
        )
    return lines


def _line(name: str, item: dict[str, Any]) -> str:
    text = f"{name:<14} {item['answers']:>12,} answers {item['tokens']:>14,} tokens {item['bytes']:>15,} bytes in {item['parts']:,} parts"
    return f"{text}, {_day(item['oldest_s'])} to {_day(item['newest_s'])}" if item["answers"] else text


def _day(seconds: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(seconds))
