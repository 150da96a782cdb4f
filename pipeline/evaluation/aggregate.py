"""Means with seeded bootstrap intervals, in bounded memory, and paired differences. Numbers only.

The unit that is drawn is the row, all its samples together. Beyond GROUPS rows, rows share groups by a hash of their number
and groups are drawn: the expected interval is the same, and memory no longer grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

GROUPS = 2048
SMALL_ROWS = 30  # slices below this are marked
DIGITS = 10  # of what is written: sums in another order differ beyond
PROBABILITIES = (0.025, 0.975)


class Means:
    """Running sums of several metrics for one set of rows."""

    def __init__(self, metrics: int) -> None:
        self.rows = 0
        self._sums = np.zeros((0, metrics))
        self._counts = np.zeros((0, metrics))
        self.n_valid = np.zeros(metrics, dtype=np.int64)
        self._last = -1

    def add(self, ordinals: np.ndarray, values: np.ndarray) -> None:
        """ordinals int64 [N], rising; values float64 [N, metrics], NaN where not valid."""
        if not len(ordinals):
            return
        new = np.diff(ordinals, prepend=self._last) != 0
        groups = _group(self.rows - 1 + np.cumsum(new))
        self.rows += int(new.sum())
        self._last = int(ordinals[-1])
        self._grow(int(groups.max()) + 1)
        valid = ~np.isnan(values)
        np.add.at(self._sums, groups, np.where(valid, values, 0.0))
        np.add.at(self._counts, groups, valid)
        self.n_valid += valid.sum(axis=0)

    def _grow(self, groups: int) -> None:
        if groups > len(self._sums):
            extra = ((0, max(groups, min(GROUPS, 2 * len(self._sums))) - len(self._sums)), (0, 0))
            self._sums, self._counts = np.pad(self._sums, extra), np.pad(self._counts, extra)

    def summary(self, names: Sequence[str], draws: int, seed: int = 0) -> dict[str, dict[str, Any]]:
        """{metric: {mean, low, high, n_valid}}; null, never NaN, where nothing is valid or draws is 0."""
        size = min(self.rows, GROUPS)
        low, high = bootstrap_ratio(self._sums[:size], self._counts[:size], draws, seed)
        with np.errstate(invalid="ignore", divide="ignore"):
            means = self._sums.sum(axis=0) / self._counts.sum(axis=0)
        return {
            name: {"mean": rounded(means[i]), "low": rounded(low[i]), "high": rounded(high[i]), "n_valid": int(self.n_valid[i])}
            for i, name in enumerate(names)
        }


def bootstrap_ratio(sums: np.ndarray, counts: np.ndarray, draws: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """95 % percentile interval of sum / count (Efron, 1979) over units drawn with replacement, the same for the same seed.

    sums, counts float64 [units, metrics]. Returns low, high [metrics]; NaN where a draw could hold nothing valid.
    """
    units, metrics = sums.shape
    if not units or not draws:
        return np.full(metrics, np.nan), np.full(metrics, np.nan)
    generator = np.random.default_rng(seed)
    weights = generator.multinomial(units, np.full(units, 1 / units), size=draws).astype(np.float64)
    drawn = weights @ counts
    with np.errstate(invalid="ignore", divide="ignore"):
        means = np.where(drawn > 0, (weights @ sums) / drawn, np.nan)
    usable = ~np.isnan(means).all(axis=0)
    result = np.full((2, metrics), np.nan)
    result[:, usable] = np.nanquantile(means[:, usable], PROBABILITIES, axis=0)
    return result[0], result[1]


def paired_difference(a: np.ndarray, b: np.ndarray, draws: int = 1000, seed: int = 0) -> tuple[float, float, float, int, int, int]:
    """(mean, low, high, wins, losses, ties) of b - a over the same rows; a win is a row where b is higher.

    a, b float64 [rows]; rows where either is NaN do not count. (NaN, NaN, NaN, 0, 0, 0) when none is left.
    """
    difference = np.asarray(b, dtype=np.float64) - np.asarray(a, dtype=np.float64)
    difference = difference[~np.isnan(difference)]
    if not len(difference):
        return (float("nan"),) * 3 + (0, 0, 0)
    means = bootstrap_means(difference, draws, seed)
    low, high = np.quantile(means, PROBABILITIES) if draws else (np.nan, np.nan)
    wins, losses = int((difference > 0).sum()), int((difference < 0).sum())
    return float(difference.mean()), float(low), float(high), wins, losses, len(difference) - wins - losses


def bootstrap_means(values: np.ndarray, draws: int, seed: int) -> np.ndarray:
    """Means of `draws` resamples of values [rows], drawn by counts of distinct values: flat in the number of rows."""
    distinct, counts = np.unique(values, return_counts=True)
    generator = np.random.default_rng(seed)
    means = np.empty(draws)
    block = max(1, 4_000_000 // len(distinct))
    for start in range(0, draws, block):
        stop = min(draws, start + block)
        drawn = generator.multinomial(len(values), counts / len(values), size=stop - start)
        means[start:stop] = drawn @ distinct / len(values)
    return means


def rounded(value: float) -> float | None:
    """For JSON: ten digits, None for NaN and infinities."""
    return round(float(value), DIGITS) + 0.0 if np.isfinite(value) else None


def _group(index: np.ndarray) -> np.ndarray:
    """Group of each row number: itself below GROUPS, a hash beyond (splitmix64), so that no pattern of arrival counts."""
    x = index.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return np.where(index < GROUPS, index, (x % np.uint64(GROUPS)).astype(np.int64))
