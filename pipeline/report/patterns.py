"""Where failures sit: conditions, and pairs of two, under which rows fail far more often than elsewhere.

A condition is something known before the answer (a field's value, a length, a language, a cleaning step, a term of the
prompt); what came out is never a condition, or truncated answers would "explain" truncation. Each condition and pair is
tested by Fisher's exact test, one-sided, with Holm's correction (1979) for the number tried; a pair must also beat both of
its halves. Patterns are taken greedily: the strongest first, then what still stands out in the rows it does not cover.
Integers and bits only; knows no tables and no pages.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from scipy.stats import hypergeom

MIN_ROWS = 10
MIN_FAILURES = 5
MIN_LIFT = 1.25  # times the usual failure rate; where most rows fail, as little as 1/1.25**2 of the usual pass rate will do
ALPHA = 0.01
MAX_PATTERNS = 10
MAX_CONDITIONS = 600


@dataclass(frozen=True)
class Condition:
    """kind: field, language, bucket, step, source, references, term; e.g. field `task` value `math`."""

    kind: str
    name: str
    value: str


@dataclass(frozen=True)
class Pattern:
    """A group of rows that fails more than the rest. Rates are shares; p is corrected for the number tried."""

    conditions: tuple[Condition, ...]
    rows: int
    failures: int
    rate: float
    rest_rate: float
    lift: float
    p: float
    members: np.ndarray  # bool per row


@dataclass(frozen=True)
class Mined:
    """patterns, strongest first; tried: slices and pairs that were tested; signal: why there is none, else None."""

    patterns: tuple[Pattern, ...]
    tried: int
    rows: int
    failures: int
    silence: str | None


def mine(failed: np.ndarray, conditions: dict[Condition, np.ndarray], max_patterns: int = MAX_PATTERNS) -> Mined:
    """failed [rows] bool; conditions: sorted row numbers per condition. The same input gives the same patterns."""
    rows, failures = len(failed), int(failed.sum())
    if rows < 2 * MIN_ROWS or failures < MIN_FAILURES:
        return Mined((), 0, rows, failures, "few_rows" if rows < 2 * MIN_ROWS else "few_failures")
    if rows - failures < MIN_FAILURES:
        return Mined((), 0, rows, failures, "nearly_all_fail")
    names, bits = _as_bits(rows, conditions)
    fail_bits = np.packbits(failed)
    tried, candidates = _test_all(names, bits, fail_bits, rows, failures)
    patterns = _greedy(candidates, tried, names, bits, failed, max_patterns)
    return Mined(tuple(patterns), tried, rows, failures, None if patterns else "no_pattern")


def _as_bits(rows: int, conditions: dict[Condition, np.ndarray]) -> tuple[list[Condition], np.ndarray]:
    """Conditions that are neither rare nor true of nearly all rows, as packed bits; equal row sets are kept once, the first named."""
    usable = [(c, members) for c, members in conditions.items() if MIN_ROWS <= len(members) <= rows - MIN_ROWS]
    usable.sort(key=lambda item: (item[0].kind == "term", -len(item[1]), item[0].kind, item[0].name, item[0].value))
    names: list[Condition] = []
    kept: list[np.ndarray] = []
    seen: set[bytes] = set()
    for condition, members in usable:
        flags = np.zeros(rows, bool)
        flags[members] = True
        packed = np.packbits(flags)
        key = packed.tobytes()
        if key not in seen and len(names) < MAX_CONDITIONS:
            seen.add(key)
            names.append(condition)
            kept.append(packed)
    return names, np.stack(kept) if kept else np.zeros((0, (rows + 7) // 8), np.uint8)


@dataclass(frozen=True)
class _Candidate:
    log_p: float
    parts: tuple[int, ...]
    rows: int
    failures: int


def _test_all(names: list[Condition], bits: np.ndarray, fail: np.ndarray, rows: int, failures: int) -> tuple[int, list[_Candidate]]:
    """Every single condition and every pair of different kinds: number tested, and those that fail more than the rest."""
    base = failures / rows
    sizes, hits = _counts(bits), _counts(bits & fail)
    tested = len(names)
    found = [_Candidate(p, (i,), int(sizes[i]), int(hits[i])) for i, p in _raised(sizes, hits, rows, failures, base)]
    for i in range(len(names)):
        others = [j for j in range(i + 1, len(names)) if _may_pair(names[i], names[j])]
        if not others:
            continue
        both = bits[others] & bits[i]
        pair_sizes, pair_hits = _counts(both), _counts(both & fail)
        enough = (pair_sizes >= MIN_ROWS) & (pair_sizes < sizes[i]) & (pair_sizes < sizes[others])
        tested += int(enough.sum())
        for k, log_p in _raised(np.where(enough, pair_sizes, 0), pair_hits, rows, failures, base):
            j = others[k]
            if all(_beats_half(pair_sizes[k], pair_hits[k], sizes[h], hits[h]) for h in (i, j)):
                found.append(_Candidate(log_p, (i, j), int(pair_sizes[k]), int(pair_hits[k])))
    return tested, found


def _raised(sizes: np.ndarray, hits: np.ndarray, rows: int, failures: int, base: float) -> list[tuple[int, float]]:
    """Those with enough rows, failures and lift, each with the log of its one-sided p."""
    sizes, hits = np.asarray(sizes), np.asarray(hits)
    stands_out = (hits > MIN_LIFT * base * sizes) | (MIN_LIFT**2 * (sizes - hits) < (1 - base) * sizes)
    index = np.flatnonzero((sizes >= MIN_ROWS) & (hits >= MIN_FAILURES) & stands_out)
    logs = hypergeom.logsf(hits[index] - 1, rows, failures, sizes[index])
    return [(int(i), float(log)) for i, log in zip(index, np.atleast_1d(logs)) if log < np.log(ALPHA)]


def _beats_half(size: int, hit: int, half_size: int, half_hit: int) -> bool:
    """Within one of its halves the pair fails more than the rest of that half (p < ALPHA)."""
    return bool(hypergeom.sf(hit - 1, half_size, half_hit, size) < ALPHA)


def _may_pair(a: Condition, b: Condition) -> bool:
    """Values of one field exclude each other; two terms of a prompt would square the number tried."""
    return (a.kind, a.name) != (b.kind, b.name) and not (a.kind == b.kind == "term")


def _greedy(
    candidates: list[_Candidate], tried: int, names: list[Condition], bits: np.ndarray, failed: np.ndarray, limit: int
) -> list[Pattern]:  # fmt: skip
    """Strongest first by corrected p; the others must still stand out in the rows not covered yet."""
    rows, failures = len(failed), int(failed.sum())
    ordered = sorted(candidates, key=lambda item: (item.log_p, -item.failures, len(item.parts), item.parts))
    free = np.ones(rows, bool)
    taken: list[Pattern] = []
    for place, item in enumerate(ordered):
        log_p = item.log_p + np.log(max(tried - place, 1))
        if log_p > np.log(ALPHA) or len(taken) == limit:
            break
        members = np.unpackbits(np.bitwise_and.reduce(bits[list(item.parts)]), count=rows).astype(bool)
        if taken and not _still_stands(members, free, failed):
            continue
        free &= ~members
        rest = rows - item.rows
        rest_rate = (failures - item.failures) / rest if rest else 0.0
        rate = item.failures / item.rows
        taken.append(
            Pattern(tuple(names[i] for i in item.parts), item.rows, item.failures, rate, rest_rate,
                    rate / (failures / rows), float(np.exp(min(log_p, 0.0))), members)
        )  # fmt: skip
    return taken


def _still_stands(members: np.ndarray, free: np.ndarray, failed: np.ndarray) -> bool:
    new = members & free
    size, hit = int(new.sum()), int((new & failed).sum())
    rest, rest_hit = int(free.sum()), int((free & failed).sum())
    if size < MIN_ROWS or hit < MIN_FAILURES or rest_hit == 0:
        return False
    if hit * rest < MIN_LIFT * rest_hit * size and MIN_LIFT**2 * (size - hit) * rest > (rest - rest_hit) * size:
        return False
    return bool(hypergeom.sf(hit - 1, rest, rest_hit, size) < ALPHA)


def _counts(bits: np.ndarray) -> np.ndarray:
    counts: np.ndarray = np.bitwise_count(bits).sum(axis=-1, dtype=np.int64)
    return counts


def intervals(hits: Iterable[int], sizes: Iterable[int]) -> list[tuple[float, float]]:
    """95 % Wilson score interval (Wilson, 1927) of each share."""
    z = 1.959964
    found = []
    for hit, size in zip(hits, sizes):
        share, spread = hit / size, z * np.sqrt((hit / size) * (1 - hit / size) / size + z * z / (4 * size * size))
        centre, scale = share + z * z / (2 * size), 1 + z * z / size
        found.append((max(0.0, float((centre - spread) / scale)), min(1.0, float((centre + spread) / scale))))
    return found
