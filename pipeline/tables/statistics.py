"""What the rows of a night look like in numbers; the gate compares them with the accepted baseline."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

QUANTILES = (0.5, 0.9, 0.99)
MAX_FIELDS = 200


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

    @property
    def fields(self) -> list[str]:
        """Names of all fields seen, those of rejected rows too."""
        return sorted(self._fields)

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
