"""What the rows of a night look like in numbers; the gate compares them with the accepted baseline."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

QUANTILES = (0.5, 0.9, 0.99)
MAX_FIELDS = 200
AMOUNT_DRIFT = 0.25  # of the amount before
SHARE_DRIFT = 0.05  # of all rows


class Statistics:
    """Counts over rows, four bytes held per row. Feed it accepted rows, reject reasons and the fields seen."""

    def __init__(self) -> None:
        self.rows = 0
        self.reasons: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        self._fields: Counter[str] = Counter()
        self._lengths: list[Any] = []

    def add(self, rows: pa.Table, reasons: list[str], fields: Counter[str]) -> None:
        self.rows += rows.num_rows + len(reasons)
        self.reasons.update(reasons)
        self._fields.update(fields)
        for name in ("text", "messages", "completion", "reference"):
            self._counts[name] += rows.num_rows - rows[name].null_count
        self._counts["overrides"] += pc.sum(pc.not_equal(rows["overrides"], "{}")).as_py() or 0
        length = pc.fill_null(pc.utf8_length(pc.coalesce(rows["text"], rows["messages"])), 0)
        self._lengths.append(length.to_numpy().astype(np.int32))

    def summary(self) -> dict[str, Any]:
        """Plain data for the manifest. chars: of the text, or of the messages' JSON."""
        lengths = np.concatenate(self._lengths) if self._lengths else np.zeros(0, np.int32)
        rejected = sum(self.reasons.values())
        return {
            "rows": self.rows,
            "accepted": self.rows - rejected,
            "rejected": rejected,
            "reject_share": round(rejected / self.rows, 6) if self.rows else 0.0,
            "reasons": dict(sorted(self.reasons.items())),
            "with": dict(sorted(self._counts.items())),
            "chars": _length_summary(lengths),
            "fields": dict(sorted(self._fields.most_common(MAX_FIELDS))),
        }


def _length_summary(lengths: Any) -> dict[str, float | int]:
    if not len(lengths):
        return {}
    ranks = np.quantile(lengths, QUANTILES, method="inverted_cdf")
    named = {f"p{round(q * 100)}": int(value) for q, value in zip(QUANTILES, ranks)}
    return {"min": int(lengths.min()), "mean": round(float(lengths.mean(dtype=np.float64)), 3), "max": int(lengths.max()), **named}


def drift(now: dict[str, Any], before: dict[str, Any]) -> list[str]:
    """Sentences on how the rows differ from those of an accepted run; both are `Statistics.summary` data. Empty: alike.

    A count or length has drifted when it is a quarter more or less, a share when it moved by five points.
    """
    found = [
        f"{name}: {old:,} before, {new:,} now"
        for name, old, new in _amounts(now, before)
        if abs(new - old) > AMOUNT_DRIFT * max(abs(old), 1e-9)
    ]
    found += [
        f"{name}: {old:.1%} of the rows before, {new:.1%} now" for name, old, new in _shares(now, before) if abs(new - old) > SHARE_DRIFT
    ]
    return found


def _amounts(now: dict[str, Any], before: dict[str, Any]) -> list[tuple[str, float, float]]:
    lengths = [(f"characters {key}", before["chars"][key], now["chars"][key]) for key in ("p50", "p99") if before["chars"] and now["chars"]]
    return [("rows", before["rows"], now["rows"]), *lengths]


def _shares(now: dict[str, Any], before: dict[str, Any]) -> list[tuple[str, float, float]]:
    """Every counted thing as a share of all rows: reject reasons, fields, rows with a reference and so on."""
    shares = []
    for group, label in (("reasons", "rejected as"), ("with", "with"), ("fields", "with field")):
        for name in sorted(before[group].keys() | now[group].keys()):
            old, new = (side[group].get(name, 0) / max(side["rows"], 1) for side in (before, now))
            shares.append((f"{label} {name}", old, new))
    return shares
