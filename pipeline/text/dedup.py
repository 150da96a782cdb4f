"""Exact and near duplicates among millions of rows, with compact signatures on disk and one band in memory at a time.

Near duplicates are joined band by band (locality-sensitive hashing) and verified on their signatures; rows with few shingles
are compared exactly. The row of the lowest ordinal stays; whatever is removed is like a row that stays.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa

from pipeline.text.signatures import BANDS, PERMUTATIONS, band_keys, signatures

DEDUP_VERSION = 1


@dataclass(frozen=True)
class Fingerprints:
    """What duplicates are found by, for N rows. near: which rows have enough shingles; bands and signatures hold those only."""

    ordinals: np.ndarray  # int64 [N], rising
    exact: np.ndarray  # uint64 [N, 2]
    near: np.ndarray  # bool [N]
    bands: np.ndarray  # uint64 [BANDS, near rows]
    signatures: np.ndarray  # uint16 [near rows, PERMUTATIONS]


@dataclass(frozen=True)
class Duplicates:
    """Removed rows: their ordinals (rising), the ordinal each one loses to, and whether it is equal or only like it."""

    ordinals: np.ndarray
    first: np.ndarray
    exact: np.ndarray

    def find(self, ordinals: np.ndarray) -> list[tuple[int, str] | None]:
        """For each ordinal None, or the row it loses to and `exact` or `near`."""
        at = np.searchsorted(self.ordinals, ordinals)
        at[at == len(self.ordinals)] = 0
        hit = self.ordinals[at] == ordinals if len(self.ordinals) else np.zeros(len(ordinals), bool)
        return [(int(self.first[i]), "exact" if self.exact[i] else "near") if found else None for i, found in zip(at, hit)]


def fingerprints(clean: pa.Table, validated: pa.Table, kind: Literal["exact", "near"], keep_digits: bool = True) -> Fingerprints:
    """Fingerprints of clean rows; `validated` holds the same rows.

    Rows are compared within their group: control rows apart from the night's own, and rows with other generation values
    apart. keep_digits: rows whose digits differ are never near duplicates.
    """
    texts = [text if text is not None else _conversation(messages) for text, messages in
             zip(clean["text"].to_pylist(), clean["messages"].to_pylist())]  # fmt: skip
    groups = [f"{int(control)}{overrides or ''}" for control, overrides in
              zip(validated["control"].to_pylist(), validated["overrides"].to_pylist())]  # fmt: skip
    exact = np.frombuffer(b"".join(_digest(group, text) for group, text in zip(groups, texts)), np.uint64).reshape(-1, 2)
    ordinals = clean["ordinal"].to_numpy()
    if kind == "exact":
        empty = np.zeros(len(texts), bool)
        return Fingerprints(ordinals, exact, empty, np.zeros((BANDS, 0), np.uint64), np.zeros((0, PERMUTATIONS), np.uint16))
    group_hashes = np.frombuffer(b"".join(_digest(group, "")[:8] for group in groups), np.uint64)
    near, keys, values = signatures(texts, group_hashes, keep_digits)
    return Fingerprints(ordinals, exact, near, band_keys(values, keys), values.astype(np.uint16))


class Deduplicator:
    """Collects fingerprints in a temporary folder and finds the rows to remove. Leaving the block removes the folder."""

    def __init__(self, threshold: float = 0.8, folder: Path | None = None) -> None:
        self._threshold = threshold
        self._folder = Path(tempfile.mkdtemp(prefix="dedup-", dir=folder))
        self._bands = [open(self._folder / f"band-{band}", "wb") for band in range(BANDS)]  # noqa: SIM115 closed in survivors
        self._signatures = open(self._folder / "signatures", "wb")  # noqa: SIM115
        self._parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    def __enter__(self) -> Deduplicator:
        return self

    def __exit__(self, *exception: object) -> None:
        self._close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def add(self, part: Fingerprints) -> None:
        """Take the fingerprints of the next rows, in the order of their ordinals."""
        self._parts.append((part.ordinals, part.exact, part.near))
        for file, keys in zip(self._bands, part.bands):
            file.write(np.ascontiguousarray(keys).tobytes())
        self._signatures.write(np.ascontiguousarray(part.signatures).tobytes())

    def duplicates(self) -> Duplicates:
        """All rows to remove."""
        self._close()
        nothing = (np.zeros(0, np.int64), np.zeros((0, 2), np.uint64), np.zeros(0, bool))
        ordinals, exact, near = (np.concatenate(columns) for columns in zip(nothing, *self._parts))
        self._parts = []
        first = _first_equal(exact)
        is_exact = first >= 0
        near_rows = np.flatnonzero(near)
        if len(near_rows):
            alive = first[near_rows] < 0
            lost_to = self._near(alive)
            lost = np.flatnonzero(lost_to >= 0)
            first[near_rows[lost]] = near_rows[lost_to[lost]]
        removed = np.flatnonzero(first >= 0)
        return Duplicates(ordinals[removed], ordinals[_last_survivor(first, removed)], is_exact[removed])

    def _near(self, alive: np.ndarray) -> np.ndarray:
        """For each near row the row it loses to, or -1. Repeated until no pair is left, so that a second run finds nothing."""
        signatures = np.memmap(self._folder / "signatures", np.uint16, "r", shape=(len(alive), PERMUTATIONS))
        lost_to = np.full(len(alive), -1, np.int64)
        while True:
            like = self._lowest_like(alive, signatures)
            removed = 0
            for row in np.flatnonzero(like >= 0).tolist():
                target = int(like[row])
                if lost_to[target] >= 0:
                    target = int(lost_to[target])
                    if not self._alike(signatures, np.array([row]), np.array([target]))[0]:
                        continue
                lost_to[row], alive[row] = target, False
                removed += 1
            if not removed:
                return lost_to

    def _lowest_like(self, alive: np.ndarray, signatures: np.ndarray) -> np.ndarray:
        """For each alive row the lowest earlier one that shares a band with it and is verified to be like it, or -1."""
        like = np.full(len(alive), -1, np.int64)
        rows = np.flatnonzero(alive)
        for band in range(BANDS):
            keys = np.fromfile(self._folder / f"band-{band}", np.uint64)[rows]
            order = np.argsort(keys, kind="stable")
            keys, members = keys[order], rows[order]
            same = np.flatnonzero(keys[1:] == keys[:-1]) + 1
            starts = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]])
            heads = members[starts[np.searchsorted(starts, same, "right") - 1]]
            for others in (heads, members[same - 1]):
                self._note(like, members[same], others, signatures)
        return like

    def _note(self, like: np.ndarray, rows: np.ndarray, others: np.ndarray, signatures: np.ndarray) -> None:
        open_pairs = (like[rows] < 0) | (like[rows] > others)
        rows, others = rows[open_pairs], others[open_pairs]
        for start in range(0, len(rows), 65_536):
            part, other = rows[start : start + 65_536], others[start : start + 65_536]
            good = self._alike(signatures, part, other)
            like[part[good]] = other[good]

    def _alike(self, signatures: np.ndarray, rows: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Whether the estimated Jaccard similarity of each pair reaches the threshold."""
        good: np.ndarray = np.asarray((signatures[rows] == signatures[others]).mean(axis=1) >= self._threshold)
        return good

    def _close(self) -> None:
        for file in (*self._bands, self._signatures):
            file.close()


def _first_equal(exact: np.ndarray) -> np.ndarray:
    """For each row the first earlier row with the same digest, or -1."""
    order = np.lexsort((exact[:, 1], exact[:, 0]))
    same = (exact[order][1:] == exact[order][:-1]).all(axis=1)
    starts = np.flatnonzero(np.r_[True, ~same]) if len(order) else np.zeros(0, np.int64)
    first = np.full(len(exact), -1, np.int64)
    repeated = np.flatnonzero(np.r_[False, same]) if len(order) else starts
    first[order[repeated]] = order[starts[np.searchsorted(starts, repeated, "right") - 1]]
    return first


def _last_survivor(first: np.ndarray, removed: np.ndarray) -> np.ndarray:
    """Follow an exact duplicate whose first copy was itself removed as a near duplicate."""
    target: np.ndarray = first[removed]
    while (again := first[target] >= 0).any():
        target = np.where(again, first[target], target)
    return target


def _digest(group: str, text: str) -> bytes:
    return blake2b(text.encode(), digest_size=16, key=group.encode()[:64]).digest()


def _conversation(messages: str | None) -> str:
    """One text of a conversation; roles and order count."""
    return "\n".join(json.dumps(turn, ensure_ascii=False, sort_keys=True) for turn in json.loads(messages or "[]"))
