"""What a run ends with on the terminal: rows, scores in a small table, verdict, where the report is."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from pipeline.core.manifest import read_json_or_empty
from pipeline.core.paths import Paths
from pipeline.evaluation.gate import is_open
from pipeline.evaluation.slices import NONE

MAX_SLICE_VALUES = 12
MAX_METRICS = 12
# What people ask for first; a metric without a scored row is left out, all are in reports/metrics.json.
FIRST = ("exact", "contains", "numeric", "choice", "token_f1", "chrf", "rouge_l", "edit_similarity", "json_valid", "json_schema",
         "instructions", "language_match", "refusal", "loop_share", "truncated", "empty")  # fmt: skip


def summary_lines(paths: Paths) -> list[str]:
    """Lines for people, from metrics.json, gate.json and the results' manifest; what is not there is left out."""
    metrics = read_json_or_empty(paths.metrics_json)
    rows = (read_json_or_empty(paths.results / "manifest.json").get("rows")) or {}
    lines = []
    if rows:
        own = ", control set left out" * bool(metrics.get("control"))
        lines.append(
            f"rows      {rows['into']:,} in{own}: {rows['out']:,} answered, {rows['rejected']:,} rejected, {rows['failed']:,} failed"
        )
    lines += score_table(metrics)
    for field, values in (metrics.get("slices") or {}).items():
        lines += slice_table(field, values, shown_metrics(metrics))
    return lines + verdict_lines(paths)


def verdict_lines(paths: Paths) -> list[str]:
    """The gate's verdict with its reasons, and where the pages are."""
    lines, gate = [], read_json_or_empty(paths.gate_json)
    if gate:
        reasons = [str(reason.get("text", reason) if isinstance(reason, dict) else reason) for reason in gate.get("reasons") or []]
        reasons += [_open(paths)] * is_open(gate)
        lines.append(f"gate      {gate.get('verdict', 'none')}{': ' + '; '.join(reasons) if reasons else ''}")
    lines += [f"{name:<10}{file}" for name, file in (("report", paths.bad_cases_html), ("night", paths.index_html)) if file.is_file()]
    return lines


def _open(paths: Paths) -> str:
    """What a green without a baseline lacks, and the command that gives it one where there is a control set."""
    if not read_json_or_empty(paths.metrics_json).get("control"):
        return "nothing to compare with: no control set, no limit"
    root = "" if paths.root == Path.cwd() else f" --root {shlex.quote(str(paths.root))}"
    return f"nothing to compare with yet; `pipeline accept{root}` makes this night the baseline"


def score_table(metrics: dict[str, Any]) -> list[str]:
    """One line per metric: mean, 95 % interval, rows scored, the control set's mean."""
    held, names = metrics.get("metrics") or {}, shown_metrics(metrics)
    if not names:
        return []
    width = max(8, *(len(name) for name in names))
    lines = ["", f"{'score':<{width}}     mean   95 % interval     rows  control"]
    for name in names:
        value = held[name]
        control = ((metrics.get("control") or {}).get(name) or {}).get("mean")
        interval = f"{_number(value.get('low'))} .. {_number(value.get('high'))}"
        lines.append(
            f"{name:<{width}} {_number(value.get('mean')):>8}   {interval:<15} {value.get('n_valid', 0):>6}  {_number(control):>7}"
        )
    return [*lines, ""]


def shown_metrics(metrics: dict[str, Any]) -> list[str]:
    """Metrics with a scored row: those people ask for first, then the others, a dozen at most."""
    held = [name for name, value in (metrics.get("metrics") or {}).items() if value.get("n_valid")]
    return sorted(held, key=lambda name: (FIRST.index(name) if name in FIRST else len(FIRST), held.index(name)))[:MAX_METRICS]


def slice_table(field: str, values: dict[str, Any], names: list[str], most: int = 6) -> list[str]:
    """Means by the values of one field, for the first few metrics."""
    names = [name for name in names if any(isinstance(value, dict) and name in value for value in values.values())][:most]
    if not names or set(values) == {NONE}:  # no row has the field
        return []
    width = max(10, *(len(str(value)) for value in values), len(field) + 3)
    lines = [f"{'by ' + field:<{width}}   rows" + "".join(f" {name[:12]:>12}" for name in names)]
    for value, held in list(values.items())[:MAX_SLICE_VALUES]:
        lines.append(f"{value:<{width}} {held.get('rows', 0):>6}" + "".join(f" {_number(_mean(held.get(name))):>12}" for name in names))
    return [*lines, ""]


def _mean(value: Any) -> float | None:
    return value.get("mean") if isinstance(value, dict) else value


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"
