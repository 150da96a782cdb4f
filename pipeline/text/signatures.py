"""MinHash signatures of texts (Broder, 1997) and the band keys by which alike texts meet. Knows texts only, no rows.

Shingles are runs of characters without blanks and case, three long in Chinese, Japanese and Korean text and five elsewhere.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from rensa import RMinHash

PERMUTATIONS, BANDS = 128, 16
BAND_ROWS = PERMUTATIONS // BANDS
MIN_SHINGLES = 24  # fewer are compared exactly
SLICE_CHARS = 4_000_000  # looked at together; bounds memory
SEED = 2024
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
CJK_SHARE = 0.3  # of a text's characters, from which on its shingles are short
CJK_RANGES = ((0x3040, 0x30FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xAC00, 0xD7AF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF))


def signatures(texts: list[str], groups: np.ndarray, keep_digits: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Which texts have enough shingles (bool [N]); for those, keys that must be equal (uint64 [M]) and signatures (uint32
    [M, PERMUTATIONS]). groups uint64 [N]: texts of different groups, or with keep_digits of different digits, get other keys."""
    pieces = [_signatures(texts[part], groups[part], keep_digits) for part in _slices(texts)]
    near, keys, values = (np.concatenate(columns) for columns in zip(*pieces))
    return near, keys, values


def band_keys(values: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Band keys uint64 [BANDS, rows]; rows with other `keys` never meet."""
    parts = values.reshape(len(values), BANDS, BAND_ROWS).astype(np.uint64)
    mixed = np.broadcast_to(keys[:, None], (len(values), BANDS)).copy()
    for i in range(BAND_ROWS):
        mixed = (mixed ^ parts[:, :, i]) * MULTIPLIER
        mixed ^= mixed >> np.uint64(32)
    return np.ascontiguousarray(mixed.T)


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
