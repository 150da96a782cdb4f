"""`pipeline compare`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from pipeline.core.paths import Paths


@click.command()
@click.argument("a")
@click.argument("b")
@click.option("--rows", type=int, default=20, help="Changed rows shown (default: 20); JSON holds all.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def compare(a: str, b: str, rows: int, as_json: bool) -> None:
    """Which rows changed between two runs and why, and which scores moved by more than chance.

    A and B: a root folder, a Git revision, or a DVC experiment (its tables are restored from DVC's cache).

    \b
    Examples:
        python -m pipeline compare /tmp/monday /tmp/tuesday
        python -m pipeline compare HEAD~1 .
    """
    from pipeline.runners.compare import compare_runs
    from pipeline.runners.revisions import resolve_side

    here = Path.cwd()
    scratch = Paths(here).work / "compare"
    found = compare_runs(resolve_side(a, here, scratch), resolve_side(b, here, scratch))
    if as_json:
        click.echo(json.dumps({"a": a, "b": b, **asdict(found)}, ensure_ascii=False, indent=2))
    else:
        click.echo("\n".join(_lines(a, b, found, rows)))


def _lines(a: str, b: str, found: Any, most: int) -> list[str]:
    counts = found.counts
    lines = [f"A {a}", f"B {b}"]
    lines.append(
        f"answers   {counts['same']:,} same, {counts['changed']:,} changed, {counts['only_a']:,} only in A, {counts['only_b']:,} only in B"
    )
    if found.causes:
        lines.append("why       " + ", ".join(f"{cause} {count:,}" for cause, count in found.causes.items()))
    for cause, names in found.differs.items():
        lines += [f"  {cause:<9} {name}" for name in names[:8]]
    for title, metrics in (("metric", found.metrics), ("control", found.control)):
        lines += _metric_lines(title, metrics)
    for row in found.changed[:most]:
        at = f", token {row['first_differing_token']}" if row["first_differing_token"] is not None else ""
        lines += ["", f"{row['id']} sample {row['sample']}: {row['cause']}{at}", f"  A {row['a']}", f"  B {row['b']}"]
    if len(found.changed) > most:
        lines += ["", f"... and {len(found.changed) - most:,} more changed rows (--rows, or --json)"]
    return lines


def _metric_lines(title: str, metrics: dict[str, dict[str, Any]]) -> list[str]:
    still = [name for name, item in metrics.items() if not item["higher"] and not item["lower"]]
    metrics = {name: item for name, item in metrics.items() if name not in still}
    said = [f"equal in every row: {', '.join(still)}"] if still else []
    if not metrics:
        return ["", f"{title}: {said[0]}"] if said else []
    width = max(len(title), *(len(name) for name in metrics))
    lines = ["", f"{title:<{width}}        A        B    B - A   95 % interval        higher  lower  equal"]
    for name, item in metrics.items():
        interval = f"{_number(item['low'])} .. {_number(item['high'])}"
        lines.append(
            f"{name:<{width}} {_number(item['a']):>8} {_number(item['b']):>8} {_number(item['difference']):>8}   {interval:<19} "
            f"{item['higher']:>6} {item['lower']:>6} {item['equal']:>6}  {item['verdict']}"
        )
    return lines + said


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"
