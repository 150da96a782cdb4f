"""`pipeline compare`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipeline.cli.terminal import shown
from pipeline.core.paths import Paths

if TYPE_CHECKING:
    from pipeline.runners.compare import Comparison


@click.command()
@click.argument("a")
@click.argument("b")
@click.option("--rows", type=click.IntRange(0), default=20, help="Changed rows shown (default: 20); JSON holds all.")
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
    with compare_runs(resolve_side(a, here, scratch), resolve_side(b, here, scratch), scratch / "tmp") as found:
        for line in _json(a, b, found) if as_json else _lines(a, b, found, rows):
            click.echo(shown(line))


def _json(a: str, b: str, found: Comparison) -> Iterator[str]:
    """One object, a changed row a line."""
    whole = {
        "a": a, "b": b, "counts": found.counts(), "causes": found.causes(), "differs": found.differs,
        "metrics": found.metrics(control=False), "control": found.metrics(control=True),
    }  # fmt: skip
    yield json.dumps(whole, ensure_ascii=False, indent=2).removesuffix("\n}") + ',\n  "changed": ['
    last = None
    for row in found.changed():
        if last is not None:
            yield f"    {last},"
        last = json.dumps(row, ensure_ascii=False)
    yield f"    {last}\n  ]\n}}" if last else "  ]\n}"


def _lines(a: str, b: str, found: Comparison, most: int) -> Iterator[str]:
    counts = found.counts()
    yield f"A {a}\nB {b}"
    same, changed, only_a, only_b = (counts[state] for state in ("same", "changed", "only_a", "only_b"))
    yield f"answers   {same:,} same, {changed:,} changed, {only_a:,} only in A, {only_b:,} only in B"
    if changed:
        yield "why       " + ", ".join(f"{cause} {count:,}" for cause, count in found.causes().items())
    for cause, names in found.differs.items():
        yield from (f"  {cause:<9} {name}" for name in names[:8])
    for title, control in (("metric", False), ("control", True)):
        yield from _metric_lines(title, found.metrics(control=control))
    for row in found.changed(most):
        at = f", token {row['first_differing_token']}" if row["first_differing_token"] is not None else ""
        yield f"\n{row['id']} sample {row['sample']}: {row['cause']}{at}\n  A {row['a']}\n  B {row['b']}"
    if changed > most:
        yield f"\n... and {changed - most:,} more changed rows (--rows, or --json)"


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
