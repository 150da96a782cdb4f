"""Marked text: an answer shaded by how unlikely its tokens were, a reference with its differences to the answer.

Gives segments (text, class) that a template escapes; knows no HTML.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rapidfuzz.distance import Indel

from pipeline.report.terms import pieces

LEVELS = (-1.0, -2.0, -3.5, -6.0)  # log probabilities below which a token is shaded one step darker
MAX_DIFF_CHARS = 2000
MIN_LIKENESS = 0.3  # texts less alike than this share nothing worth marking


@dataclass(frozen=True)
class Segment:
    """kind: empty, `p1` to `p4` (unlikely, the higher the less likely), `gone` (reference only), `added` (answer only)."""

    text: str
    kind: str = ""


def shaded(answer: str, pieces: Sequence[bytes], logprobs: np.ndarray) -> list[Segment]:
    """The answer cut at token borders, unlikely tokens marked; unmarked where tokens and text do not meet.

    pieces: the bytes each token adds to the text. Tokens that end inside a character are marked together with the one that
    completes it, by the least likely of them; what the tokens say beyond the answer (a stop string) is left out.
    """
    raw = answer.encode()
    segments: list[Segment] = []
    start = end = 0
    lowest = 0.0
    for place, (piece, logprob) in enumerate(zip(pieces, logprobs)):
        piece = piece.lstrip(b" ") if place == 0 and not raw.startswith(b" ") else piece
        end, lowest = end + len(piece), min(lowest, float(logprob))
        if not piece.startswith(raw[end - len(piece) : end]):
            return [Segment(answer)]
        if end >= len(raw) or raw[end] & 0xC0 != 0x80:
            _append(segments, raw[start:end].decode(), _level(lowest))
            start, lowest = end, 0.0
        if end >= len(raw):
            break
    _append(segments, raw[start:].decode(), "")
    return segments


def differences(reference: str, answer: str) -> list[Segment]:
    """The reference with what only it has, and what only the answer has; plain where the two are unlike, equal or very long."""
    if reference == answer or max(len(reference), len(answer)) > MAX_DIFF_CHARS:
        return [Segment(reference)]
    a, b = pieces(reference), pieces(answer)
    if Indel.normalized_similarity(a, b) < MIN_LIKENESS:
        return [Segment(reference)]
    segments: list[Segment] = []
    for code in Indel.opcodes(a, b):
        if code.tag == "equal":
            _append(segments, "".join(a[code.src_start : code.src_end]), "")
        elif code.tag == "delete":
            _append(segments, "".join(a[code.src_start : code.src_end]), "gone")
        else:
            _append(segments, "".join(b[code.dest_start : code.dest_end]), "added")
    return segments


def closest(references: list[str], answer: str) -> str:
    """The reference most like the answer, the first of equals."""
    return max(references, key=lambda text: Indel.normalized_similarity(text[:MAX_DIFF_CHARS], answer[:MAX_DIFF_CHARS]))


def _level(logprob: float) -> str:
    step = sum(logprob < level for level in LEVELS)
    return f"p{step}" if step else ""


def _append(segments: list[Segment], text: str, kind: str) -> None:
    """Neighbours of one kind are one segment."""
    if text and segments and segments[-1].kind == kind:
        segments[-1] = Segment(segments[-1].text + text, kind)
    elif text:
        segments.append(Segment(text, kind))
