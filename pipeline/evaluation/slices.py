"""Which slices a row belongs to: values of its fields, its length bucket, language, finish reason, cleaning steps."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.evaluation.aggregate import SMALL_ROWS, Means
from pipeline.evaluation.extract import as_key, value_at

MAX_VALUES = 100  # per field; more values than that say nothing by themselves and are counted as OTHER
OTHER = "(other)"
NONE = "(none)"
OF_ANSWERS = ("bucket", "language", "finish_reason", "step")  # not fields of rows


def slice_values(field: str, row: dict[str, Any], fields: dict[str, Any]) -> list[str]:
    """Values of one slice field for one row; several for `step`, and for a field that holds a list."""
    if field in ("bucket", "language", "finish_reason"):
        value = row[field]
        return [NONE if value is None or value == -1 else str(value)]
    if field == "step":
        return list(row["steps_applied"] or []) or [NONE]
    found = value_at(field, fields)
    values = found if isinstance(found, list) else [found]
    return sorted(
        {NONE if item is None else as_key(item) if not isinstance(item, dict | list) else json.dumps(item) for item in values}
    ) or [NONE]


class Slices:
    """Running means for every value of every slice field."""

    def __init__(self, fields: Sequence[str], metrics: Sequence[str]) -> None:
        self.fields, self.metrics = list(fields), list(metrics)
        self._means: dict[str, dict[str, Means]] = {field: {} for field in self.fields}

    def add(self, table: pa.Table, ordinals: np.ndarray, values: np.ndarray) -> None:
        """table: joined rows; ordinals int64 [N], values float64 [N, metrics] of the same rows."""
        if not self.fields:
            return
        members: dict[tuple[str, str], list[int]] = {}
        wanted = [name for name in ("bucket", "language", "finish_reason", "steps_applied", "meta") if name in table.column_names]
        for index, row in enumerate(table.select(wanted).to_pylist()):
            fields = json.loads(row["meta"] or "{}")
            for field in self.fields:
                for value in slice_values(field, row, fields):
                    members.setdefault((field, value), []).append(index)
        for (field, value), indices in members.items():
            self._of(field, value).add(ordinals[indices], values[indices])

    def _of(self, field: str, value: str) -> Means:
        known = self._means[field]
        if value not in known and len(known) >= MAX_VALUES:
            value = OTHER
        if value not in known:
            known[value] = Means(len(self.metrics))
        return known[value]

    def summary(self, draws: int, seed: int = 0) -> dict[str, dict[str, dict[str, Any]]]:
        """{field: {value: {"rows": n, "small": bool, metric: {mean, low, high, n_valid}}}}, values by name."""
        return {
            field: {
                value: {"rows": means.rows, "small": means.rows < SMALL_ROWS, **_valid(means.summary(self.metrics, draws, seed))}
                for value, means in sorted(known.items())
            }
            for field, known in self._means.items()
        }


def _valid(summary: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Slices name only what they have a value for."""
    return {name: entry for name, entry in summary.items() if entry["n_valid"]}
