"""What a run looked like, apart from how good it was: lengths, languages, finish reasons. The gate compares profiles for drift."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

EDGES = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)  # lower bounds, tokens or characters


class Profile:
    """Counts over the answers of one set of rows."""

    LENGTHS = ("prompt_tokens", "completion_tokens", "prompt_chars", "completion_chars")
    WORDS = ("language", "finish_reason")

    def __init__(self) -> None:
        self._lengths = {name: np.zeros(len(EDGES), dtype=np.int64) for name in self.LENGTHS}
        self._words: dict[str, Counter[str]] = {name: Counter() for name in self.WORDS}

    def add(self, table: pa.Table) -> None:
        """table: joined rows."""
        for name, column in (("prompt_chars", "asked"), ("completion_chars", "text")):
            self._count(name, np.array([len(text) for text in table[column].to_pylist() if text is not None], dtype=np.int64))
        for name in ("prompt_tokens", "completion_tokens"):
            self._count(name, table[name].drop_null().to_numpy().astype(np.int64))
        for name, counter in self._words.items():
            counter.update(value or "none" for value in table[name].to_pylist())

    def as_dict(self) -> dict[str, Any]:
        """{lengths: {name: [rows per bin of EDGES]}, words: {name: {value: rows}}}"""
        return {
            "edges": list(EDGES),
            "lengths": {name: counts.tolist() for name, counts in self._lengths.items()},
            "words": {name: dict(sorted(counter.items())) for name, counter in self._words.items()},
        }

    def _count(self, name: str, lengths: np.ndarray) -> None:
        bins = np.searchsorted(EDGES, lengths, side="right") - 1
        self._lengths[name] += np.bincount(np.maximum(bins, 0), minlength=len(EDGES))


def of_inputs(accepted: int, rejected: Mapping[str, int], statistics: Mapping[str, Any]) -> dict[str, Any]:
    """The same for what came in. rejected: rows by reason; statistics: those of stage validate, for the share of rows with each field."""
    rows = statistics.get("rows") or 0
    return {
        "words": {"reject_reason": dict(sorted({"none": accepted, **rejected}.items()))},
        "shares": {"fields": {name: round(count / rows, 6) for name, count in statistics.get("fields", {}).items()} if rows else {}},
    }


def drift(now: dict[str, Any], before: dict[str, Any]) -> dict[str, float]:
    """Total variation distance between two profiles per quantity: the share of rows that moved, 0 to 1; of the fields of the rows the
    one whose share changed most, as `fields[NAME]`.

    Quantities that either run lacks are left out. Bins must be the same; profiles of other bins are not comparable.
    """
    if now.get("edges") != before.get("edges"):
        return {}
    found = {}
    for name, counts in now["lengths"].items():
        old = before["lengths"].get(name)
        if old and sum(old) and sum(counts):
            found[name] = _distance(np.array(counts, float), np.array(old, float))
    for name, words in now["words"].items():
        old = before["words"].get(name)
        if old and sum(old.values()) and sum(words.values()):
            keys = sorted(set(old) | set(words))
            found[name] = _distance(*(np.array([d.get(key, 0) for key in keys], float) for d in (words, old)))
    for name, shares in now.get("shares", {}).items():
        old = before.get("shares", {}).get(name)
        if old and shares:
            moved = {key: round(abs(shares.get(key, 0) - old.get(key, 0)), 6) for key in sorted(set(old) | set(shares))}
            most = max(moved, key=lambda key: moved[key])
            found[f"{name}[{most}]"] = moved[most]
    return found


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    return round(float(np.abs(a / a.sum() - b / b.sum()).sum() / 2), 6)
