"""reports/index.html: how the night went, what changed since the last one, where trends point, where the time went.

Reads what `runners/run_record.py` writes below reports/runs/ (history.jsonl with a line per run, TIME/run.json) and the
verdict and scores of the stages; whatever is missing is left out. This page may know clocks and hosts: it is no stage's out.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from pipeline.core.manifest import read_json_or_empty, write_bytes
from pipeline.core.paths import Paths
from pipeline.report import charts, headline
from pipeline.report.page import render

TREND_NIGHTS = 60
LISTED_NIGHTS = 14
MAX_TRENDS = 12
MIN_HISTORY = 5  # nights before one that say what is usual
STAGES = ("model", "validate", "preprocess", "bucket", "generate", "evaluate", "gate", "report", "publish")
LINKS = ("reports/bad_cases.html", "reports/bad_cases.md", "reports/gate.json", "reports/metrics.json", "reports/runs/history.jsonl")


@dataclass(frozen=True)
class Trend:
    """One quantity over the nights, oldest first. moved: places where it left what was usual before."""

    name: str
    values: list[float | None]
    moved: list[int]
    chart: Markup
    is_metric: bool

    @property
    def last(self) -> float | None:
        return self.values[-1]


def write_night_page(paths: Paths, language: str = "en") -> Path:
    """Write the page and return its path. Works from the first night on, and after a night that failed half-way."""
    history = read_history(paths)
    record = read_json_or_empty(paths.runs / history[-1]["run"] / "run.json") if history else {}
    if record.get("stages"):
        record["stages"] = {stage: record["stages"][stage] for stage in sorted(record["stages"], key=_place)}
    if record.get("latency"):
        record["latency"] = dict(sorted(record["latency"].items(), key=lambda item: float(item[0]) if item[0].isdecimal() else 1e18))
    gate = read_json_or_empty(paths.gate_json)
    facts = {
        "record": record, "history": history[-LISTED_NIGHTS:][::-1], "reasons": headline.reasons(gate), "trends": trends(history),
        "changes": changes(history), "timelines": timelines(record),
        "report": read_json_or_empty(paths.bad_cases / "manifest.json").get("bad_cases"),
        "links": [link for link in LINKS if (paths.root / link).is_file()],
        "verdict": _verdict(history, gate), "failure": record.get("failure") or {}, "kept_from": _kept_from(history),
    }  # fmt: skip
    write_bytes(paths.index_html, render("night.html", language, lenient=True, **facts))
    return paths.index_html


def _verdict(history: list[dict[str, Any]], gate: dict[str, Any]) -> str:
    """The last night's, as the report says it: green for want of anything to compare is `open`."""
    last = str(history[-1].get("verdict", "none")) if history else "none"
    return headline.verdict_of(gate) if last == "green" and gate.get("verdict") == "green" else last


def _kept_from(history: list[dict[str, Any]]) -> str:
    """When the last night that made results started."""
    whole = finished(history)
    return str(whole[-1].get("started") or "").replace("T", " ")[:16] if whole else ""


def _place(stage: str) -> tuple[int, str]:
    """Stages in the order of the chain, unknown ones last."""
    return STAGES.index(stage) if stage in STAGES else len(STAGES), stage


def read_history(paths: Paths) -> list[dict[str, Any]]:
    """The nights of the history in order; other runs into the same folder and a line torn by a crash are left out."""
    file = paths.runs / "history.jsonl"
    lines: list[dict[str, Any]] = []
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines() if file.is_file() else ():
        try:
            item = json.loads(line)
        except ValueError:
            continue
        if isinstance(item, dict) and isinstance(item.get("run"), str) and item.get("command", "night") == "night":
            lines.append(item)
    return lines


def finished(history: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Nights that made results: neither failed, nor skipped because nothing had changed."""
    return [line for line in history if not line.get("unchanged") and line.get("verdict") != "failed"]


def trends(history: Sequence[dict[str, Any]]) -> list[Trend]:
    """Metrics of the control set (else of the rows), then throughput, rejects, time, over the finished nights."""
    found = []
    for name, values, is_metric, other in series(finished(history)[-TREND_NIGHTS:]):
        moved = moved_at(values)
        drawn = sum(value is not None for value in values) > 1
        found.append(Trend(name, values, moved, charts.trend(values, moved, other) if drawn else Markup(""), is_metric))
    return found


Series = tuple[str, list[float | None], bool, list[float | None]]  # name, values, is it a metric, the rows' own means


def series(nights: Sequence[dict[str, Any]]) -> list[Series]:
    """The quantities of the trends, one value per night.

    A metric is followed on the control set where the last night has it there, else on the rows; a night without it is a gap.
    """
    found: list[Series] = []
    for name in _metric_names(nights):
        control, rows = ([_number(line, part, name) for line in nights] for part in ("control", "metrics"))
        found.append((name, rows, True, []) if control[-1] is None else (name, control, True, rows))
    quantities: dict[str, Callable[[dict[str, Any]], float | None]] = {
        "tokens_per_s": lambda line: _number(line, "rates", "completion_tokens_per_s"),
        "rejected_share": lambda line: _share(line, "rejected"),
        "failed_share": lambda line: _share(line, "failed"),
        "wall_s": lambda line: _number(line, "wall_s"),
    }
    for name, take in quantities.items():
        values = [take(line) for line in nights]
        if any(value is not None for value in values):
            found.append((name, values, False, []))
    return found


def changes(history: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What is different from the night before that ran: name, before, now, largest relative change first."""
    ran = finished(history)
    if len(ran) < 2:
        return []
    found: list[tuple[float, dict[str, Any]]] = []
    for name, values, is_metric, _ in series(ran[-2:]):
        before, now = values
        if before is not None and now is not None and before != now:
            size = abs(now - before) / max(abs(before), abs(now))
            found.append((-size, {"name": name, "before": before, "now": now, "is_metric": is_metric}))
    return [item for _, item in sorted(found, key=lambda pair: pair[0])]


def moved_at(values: Sequence[float | None]) -> list[int]:
    """Places that lie far from the nights before them: more than 5 robust standard deviations and 5 % of the level.

    A place counts only where the one before was usual, so that a shift is marked once, where it happened.
    """
    found: list[int] = []
    far_before = False
    for place, value in enumerate(values):
        earlier = [item for item in values[max(0, place - 20) : place] if item is not None]
        if value is None or len(earlier) < MIN_HISTORY:
            continue
        centre = statistics.median(earlier)
        spread = 1.4826 * statistics.median(abs(item - centre) for item in earlier)
        far = abs(value - centre) > max(5 * spread, 0.05 * abs(centre), 1e-9)
        if far and not far_before:
            found.append(place)
        far_before = far
    return found


def timelines(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows running and waiting, and KV pages, over the seconds of each stage that kept a timeline."""
    found = []
    for stage, points in (record.get("timeline") or {}).items():
        names = [name for name in dict.fromkeys(key for point in points for key in point) if name != "t_s"]
        for group in _alike(names):
            series = [[point.get(name) for point in points] for name in group]
            if len(points) > 1:
                found.append({"stage": stage, "names": group, "chart": charts.timeline([point["t_s"] for point in points], series)})
    return found


def _alike(names: list[str]) -> list[list[str]]:
    """Names by unit: rows with rows, pages with pages; at most three lines in one chart."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name.rsplit("_", 1)[-1], []).append(name)
    return [group[:3] for group in groups.values()]


def _metric_names(nights: Sequence[dict[str, Any]]) -> list[str]:
    """Metrics that have a value: those people ask for first, then by name."""
    valued = {
        name for line in nights for part in ("control", "metrics") for name, value in (line.get(part) or {}).items() if value is not None
    }  # fmt: skip
    first, others = headline.split(sorted(valued))
    return [*first, *others][:MAX_TRENDS]


def _share(line: dict[str, Any], kind: str) -> float | None:
    """Rejected or failed rows of all stages over the rows that came in."""
    stages = line.get("rows") or {}
    into = (stages.get("validate") or {}).get("into")
    return sum((rows or {}).get(kind) or 0 for stage, rows in stages.items() if stage in _COUNTED[kind]) / into if into else None


_COUNTED = {"rejected": ("validate", "preprocess", "bucket"), "failed": ("generate",)}


def _number(line: dict[str, Any], *path: str) -> float | None:
    """The number at a path of keys."""
    value: Any = line
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
