"""The gate's checks: pure functions from numbers to findings. A finding is red, or a note that only informs.

What a finding says stands in `verdicts.json`, in English and Chinese.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
import regex

from pipeline.core.errors import ParamsError
from pipeline.core.params import GateParams
from pipeline.evaluation.aggregate import bootstrap_means, paired_difference
from pipeline.evaluation.metrics import METRICS

UNANSWERED_SHARE = 0.05  # of the baseline's control rows may have no answer tonight
TOLD_DRIFT = 0.2  # noted where no limit is set
MIN_DRAWS_PER_TEST = 100
_KEY = regex.compile(r"(?P<control>control/)?(?P<metric>[a-z0-9_]+)(?:\[(?P<field>[^=\[\]]+)=(?P<value>[^\[\]]*)\])?")


@dataclass(frozen=True)
class Finding:
    """One check with its outcome. key: of its sentence, which `words` fill; value and limit in the metric's own unit; p after
    correction, for drops."""

    check: str
    red: bool
    key: str
    words: dict[str, Any] = field(default_factory=dict)
    metric: str | None = None
    slice: str | None = None
    value: float | None = None
    limit: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    rows: int | None = None

    @property
    def message(self) -> str:
        return sentence(self.key, "en", self.words)

    def as_dict(self) -> dict[str, Any]:
        return {"message": self.message} | {key: value for key, value in asdict(self).items() if value is not None}


def is_open(gate: Mapping[str, Any]) -> bool:
    """Is the verdict of gate.json green for want of anything to hold the night against: no baseline, no limit?"""
    held_against = [check for check in gate.get("checks", [{}]) if check.get("check") != "baseline"]
    return gate.get("verdict") == "green" and not gate.get("baseline") and not held_against


def sentence(key: str, language: str, words: Mapping[str, Any]) -> str:
    """What a finding says, in `en` or `zh`."""
    return _sentences()[key][language].format(**words)


@cache
def _sentences() -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = json.loads(resources.files("pipeline.evaluation").joinpath("verdicts.json").read_text("utf-8"))
    return found


@dataclass(frozen=True)
class Key:
    """`control/metric[field=value]` taken apart."""

    text: str
    metric: str
    control: bool
    field: str | None = None
    value: str | None = None

    @property
    def slice(self) -> str | None:
        return f"{self.field}={self.value}" if self.field else None


def parse_key(text: str, where: str) -> Key:
    """Raises ParamsError for a key that is no metric or metric[field=value]."""
    match = _KEY.fullmatch(text)
    if match is None or match["metric"] not in METRICS:
        raise ParamsError(f"{where}: {text!r} is no metric[field=value]; metrics: {', '.join(METRICS)}")
    return Key(text, match["metric"], bool(match["control"]), match["field"], match["value"])


def limits(params: GateParams, metrics: Mapping[str, Any], control_slice: Any) -> list[Finding]:
    """Absolute limits on means. metrics: reports/metrics.json; control_slice(field, value) -> {metric: {mean, n_valid}}."""
    found = []
    for where, wanted in (("min", params.min), ("max", params.max)):
        for text, limit in wanted.items():
            key = parse_key(text, f"gate.{where}")
            entry = _entry(key, metrics, control_slice)
            mean = entry.get("mean") if entry else None
            words = {"name": text, "limit": f"{limit:g}", "value": "–" if mean is None else f"{mean:.4g}"}
            red = mean is None or (mean < limit if where == "min" else mean > limit)
            said = "limit_none" if mean is None else f"limit_{where}"
            found.append(Finding(where, red, said, words, key.metric, key.slice, mean, limit, rows=(entry or {}).get("n_valid")))
    return found


def nothing_valid(asked: Iterable[str], metrics: Mapping[str, Any]) -> list[Finding]:
    """A metric named in evaluate.metrics without one valid row, neither of the night nor of the control set, is red."""
    found = []
    for name in asked:
        if not any(metrics[part].get(name, {}).get("n_valid") for part in ("metrics", "control")):
            found.append(Finding("valid", True, "valid", {"name": name}, name, rows=0))
    return found


def nothing_answered(rows: Mapping[str, int]) -> list[Finding]:
    """Rows came in and not one has an answer: red, whatever the limits. rows: the night's own, of reports/metrics.json."""
    arrived = rows["rows"] + rows["rejected"]
    if not arrived or rows["answers"] > rows["failed"]:
        return []
    words = {"rows": f"{arrived:,}", "rejected": f"{rows['rejected']:,}", "failed": f"{rows['failed']:,}"}
    return [Finding("answered", True, "answered_none", words, value=0.0, rows=arrived)]


def rejected_files(files: Iterable[Mapping[str, Any]]) -> list[Finding]:
    """A note for each input file with rows of which every one was rejected. files: of the manifest of data/validated."""
    whole = [item for item in files if item["rows"] and item["rejected"] == item["rows"]]
    return [
        Finding("file", False, "file_rejected", {"path": item["path"], "rows": f"{item['rows']:,}"}, rows=item["rows"]) for item in whole
    ]


def shares(params: GateParams, rows: Mapping[str, int]) -> list[Finding]:
    """Rejected, failed and truncated shares of the night's own rows."""
    arrived = rows["rows"] + rows["rejected"]
    found = []
    for name, count, total, limit in (
        ("rejected", rows["rejected"], arrived, params.max_reject_share),
        ("failed", rows["failed"], rows["answers"], params.max_failed_share),
        ("truncated", rows["truncated"], rows["answers"], params.max_truncated_share),
    ):
        share = count / total if total else 0.0
        if limit is not None:
            words = {"count": f"{count:,}", "total": f"{total:,}", "share": f"{share:.1%}", "limit": f"{limit:.1%}"}
            found.append(Finding(name, share > limit, name, words, value=share, limit=limit, rows=total))
    return found


def drifts(params: GateParams, measured: Mapping[str, float]) -> list[Finding]:
    """Distance of tonight's profile from the baseline's; red only where a limit is set. `fields[NAME]` has the limit of `fields`."""
    known = {name.split("[")[0] for name in measured}
    unknown = sorted(set(params.max_drift) - known) if measured else []
    found = [Finding("drift", False, "drift_unknown", {"name": name}, name) for name in unknown]
    for name, distance in measured.items():
        limit = params.max_drift.get(name.split("[")[0])
        words = {"name": name, "share": f"{distance:.1%}"}
        if limit is not None:
            words["limit"] = f"{limit:.1%}"
            found.append(Finding("drift", distance > limit, "drift_limit", words, name, value=distance, limit=limit))
        elif distance >= TOLD_DRIFT:
            found.append(Finding("drift", False, "drift", words, name, value=distance))
    return found


@dataclass(frozen=True)
class Pair:
    """Tonight's and the baseline's values of one metric for the same rows, float64 [rows], NaN where not valid."""

    metric: str
    slice: str | None
    before: np.ndarray
    now: np.ndarray
    allowed: float


def drops(pairs: Sequence[Pair], params: GateParams, seed: int = 0) -> list[Finding]:
    """Falls of the control set beyond what is allowed, told from noise by a paired bootstrap.

    The error over all tests together is held at `gate.significance` (Holm, 1979). Tests whose smallest possible p-value lies above it
    cannot be red and do not count against the others (Tarone, 1990).
    """
    draws = max(params.draws, MIN_DRAWS_PER_TEST * len(pairs))
    tested = [(pair, *_test(pair, draws, seed)) for pair in pairs]
    able = [smallest <= params.significance for _, _, smallest in tested]
    adjusted = iter(holm([p for (_, p, _), can in zip(tested, able, strict=True) if can]))
    return [_drop(pair, next(adjusted) if can else 1.0, params, seed) for (pair, _, _), can in zip(tested, able, strict=True)]


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment, in the order given."""
    adjusted = [0.0] * len(p_values)
    worst = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        worst = max(worst, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = worst
    return adjusted


def _test(pair: Pair, draws: int, seed: int) -> tuple[float, float]:
    """(p of the drop being no more than allowed, smallest p these rows could give).

    The bootstrap alone is too sure of few rows: no test of a sign can be surer than 2 to the minus rows that differ.
    """
    fall = _better(pair) + pair.allowed  # below 0: fell by more than allowed
    differing = int((_better(pair) != 0).sum())
    smallest = max(0.5**differing, 1 / (draws + 1))
    if not differing or fall.mean() >= 0:
        return 1.0, smallest
    means = bootstrap_means(fall, draws, seed)
    return max(smallest, (1 + int((means >= 0).sum())) / (draws + 1)), smallest


def _better(pair: Pair) -> np.ndarray:
    """Differences of valid rows, signed so that a fall in quality is negative."""
    difference = (pair.now - pair.before) * (METRICS[pair.metric].better or 1)
    valid: np.ndarray = difference[~np.isnan(difference)]
    return valid


def _drop(pair: Pair, p: float, params: GateParams, seed: int) -> Finding:
    mean, low, high, _, _, _ = paired_difference(pair.before, pair.now, 1000, seed)
    rows = len(_better(pair))
    red = p <= params.significance
    name = pair.metric + (f"[{pair.slice}]" if pair.slice else "")
    if not rows:
        return Finding("drop", False, "drop_none", {"name": name}, pair.metric, pair.slice, rows=0)
    words = {"name": name, "change": f"{mean:+.4g}", "low": f"{low:+.4g}", "high": f"{high:+.4g}", "rows": rows, "p": f"{p:.2g}"}
    words["limit"] = f"{pair.allowed:g}"
    key = "drop_allowed" if red or pair.allowed else "drop"
    return Finding("drop", red, key, words, pair.metric, pair.slice, mean, pair.allowed, low, high, p, rows)


def _entry(key: Key, metrics: Mapping[str, Any], control_slice: Any) -> dict[str, Any] | None:
    if key.control:
        part = control_slice(key.field, key.value) if key.field else metrics["control"]
    else:
        part = metrics["slices"].get(key.field, {}).get(key.value, {}) if key.field else metrics["metrics"]
    entry: dict[str, Any] | None = part.get(key.metric)
    return entry
