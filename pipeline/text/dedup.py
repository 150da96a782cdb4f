"""Exact and near duplicates among millions of rows with compact signatures on disk and one band in memory at a time.

Near: MinHash (Broder, 1997) over character shingles, three characters long in Chinese, Japanese and Korean text and five
elsewhere, joined band by band (locality-sensitive hashing) and verified on the signatures. Rows with few shingles are
compared exactly. The row of the lowest ordinal stays; whatever is removed is like a row that stays.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
from rensa import RMinHash

DEDUP_VERSION = 1
PERMUTATIONS, BANDS = 128, 16
BAND_ROWS = PERMUTATIONS // BANDS
MIN_SHINGLES = 24  # fewer are compared exactly
SLICE_CHARS = 4_000_000
SEED = 2024
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
CJK_SHARE = 0.3  # of a row's characters, from which on its shingles are short
CJK_RANGES = ((0x3040, 0x30FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xAC00, 0xD7AF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF))


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
    pieces = [_signatures(texts[part], group_hashes[part], keep_digits) for part in _slices(texts)]
    near, keys, signatures = (np.concatenate(columns) for columns in zip(*pieces))
    return Fingerprints(ordinals, exact, near, _bands(signatures, keys), signatures.astype(np.uint16))


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


def _slices(texts: list[str]) -> list[slice]:
    """The rows in runs of at most SLICE_CHARS characters (or of one row), at least one run: bounds the memory of _signatures."""
    ends, chars = [0], 0
    for number, text in enumerate(texts):
        if chars and chars + len(text) > SLICE_CHARS:
            ends.append(number)
            chars = 0
        chars += len(text)
    return [slice(start, end) for start, end in zip(ends, [*ends[1:], len(texts)])]


def _signatures(texts: list[str], groups: np.ndarray, keep_digits: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Which rows have enough shingles (bool [N]); for those, keys that must be equal (uint64) and signatures (uint32)."""
    lower, kind = _character_tables()
    codes = np.frombuffer("".join(texts).encode("utf-32-le"), np.uint32)
    row = np.repeat(np.arange(len(texts)), [len(text) for text in texts])
    kinds = kind[codes]
    digit_key = _digit_keys(codes, row, kinds == DIGIT, len(texts))
    inside = kinds != BLANK
    codes, row, kinds = lower[codes[inside]], row[inside], kinds[inside]
    length = np.bincount(row, minlength=len(texts))
    cjk = np.bincount(row[kinds == IDEOGRAPH], minlength=len(texts)) > CJK_SHARE * length
    size = np.where(cjk, 3, 5)
    near = length - size + 1 >= MIN_SHINGLES
    signatures = np.zeros((len(texts), PERMUTATIONS), np.uint32)
    for n in (3, 5):
        chosen = near & (size == n)
        if chosen.any():
            signatures[chosen] = _minhash(codes[chosen[row]], length[chosen], n)
    keys = groups ^ (size.astype(np.uint64) * MULTIPLIER) ^ (digit_key if keep_digits else np.uint64(0))
    return near, keys[near], signatures[near]


def _minhash(codes: np.ndarray, lengths: np.ndarray, n: int) -> np.ndarray:
    """Signatures [rows, PERMUTATIONS] of the character n-grams of rows laid end to end."""
    wide = codes.astype(np.uint64)
    hashes = np.zeros(len(wide) - n + 1, np.uint64)
    for i in range(n):
        hashes = (hashes ^ wide[i : len(wide) - n + 1 + i]) * MULTIPLIER
        hashes ^= hashes >> np.uint64(29)
    ends = np.cumsum(lengths)
    across = (ends[:-1, None] - np.arange(1, n)).ravel()  # windows that would reach into the next row
    hashes = np.delete(hashes, across)
    offsets = np.r_[0, np.cumsum(lengths - n + 1)].astype(np.uint64)
    matrix = RMinHash.digest_matrix_from_flat_token_hashes(hashes, offsets, PERMUTATIONS, SEED)
    return np.array(matrix.to_rows(), np.uint32)


def _bands(signatures: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Band keys uint64 [BANDS, rows]; rows with other `keys` never meet."""
    parts = signatures.reshape(len(signatures), BANDS, BAND_ROWS).astype(np.uint64)
    mixed = np.broadcast_to(keys[:, None], (len(signatures), BANDS)).copy()
    for i in range(BAND_ROWS):
        mixed = (mixed ^ parts[:, :, i]) * MULTIPLIER
        mixed ^= mixed >> np.uint64(32)
    return np.ascontiguousarray(mixed.T)


def _digit_keys(codes: np.ndarray, row: np.ndarray, digit: np.ndarray, rows: int) -> np.ndarray:
    """A key of each row's digits in order and of where numbers begin."""
    places = np.flatnonzero(digit)
    begins = np.r_[True, np.diff(places) != 1].astype(np.uint64)
    row = row[places]
    rank = np.arange(len(places)) - np.searchsorted(row, row)
    value = codes[places].astype(np.uint64) * np.uint64(2) + begins
    value = (value ^ (rank.astype(np.uint64) * MULTIPLIER)) * MULTIPLIER
    value = (value ^ (value >> np.uint64(31))) * MULTIPLIER
    keys = np.zeros(rows, np.uint64)
    np.add.at(keys, row, value)
    return keys


OTHER, BLANK, DIGIT, IDEOGRAPH = range(4)


@cache
def _character_tables() -> tuple[np.ndarray, np.ndarray]:
    """By code point: its lower-case form (digits all 0), and whether it is a blank, a digit, an ideograph or another."""
    lower = np.arange(0x110000, dtype=np.uint32)
    kind = np.zeros(0x110000, np.uint8)
    for first, last in CJK_RANGES:
        kind[first : last + 1] = IDEOGRAPH
    for code in range(0x20000):
        c = chr(code)
        if c.isspace():
            kind[code] = BLANK
        elif c.isdecimal():
            kind[code], lower[code] = DIGIT, ord("0")
        elif len(small := c.lower()) == 1:
            lower[code] = ord(small)
    return lower, kind
