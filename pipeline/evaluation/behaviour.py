"""Metrics that need no reference: how an answer looks, whatever it should have said."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pipeline.evaluation.answer import Answer
from pipeline.evaluation.units import is_dense, units
from pipeline.evaluation.wanted import wanted_languages
from pipeline.text.language import UNSURE

NGRAM = 4  # units; 6 in scripts without blanks, where a unit says less
DENSE_NGRAM = 6
COPY_RUN = 8  # units in a row that count as copied; 16 in scripts without blanks
DENSE_COPY_RUN = 16
MIN_LOOP_REPEATS = 3
MIN_LOOP_UNITS = 6
MAX_PERIOD = 200


def empty(answer: Answer) -> float:
    """1 when nothing but blanks was answered (an answer that is all reasoning counts as empty)."""
    return float(not answer.text.strip())


def truncated(answer: Answer) -> float:
    """1 when the answer ended at the token limit."""
    return float(answer.finish_reason == "length")


def repetition(answer: Answer) -> float | None:
    """Share of n-grams that occurred before in the answer: 0 for none, near 1 for a loop."""
    size = DENSE_NGRAM if is_dense(answer.text) else NGRAM
    grams = len(answer.units) - size + 1
    if grams < 1:
        return 0.0 if answer.units else None
    return 1 - len(set(_runs(answer.units, size))) / grams


def loop_share(answer: Answer) -> float:
    """Share of the answer's units in its longest loop: one piece repeated at least three times without a break."""
    _, length = _loop(answer)
    return length / len(answer.units) if length else 0.0


def loop_start(answer: Answer) -> float | None:
    """Share of the answer before its longest loop begins, 0 to 1; None without a loop."""
    start, length = _loop(answer)
    return start / len(answer.units) if length else None


def distinct_n(answer: Answer, n: int) -> float | None:
    """Share of different n-grams of units (Li et al., 2016); None when the answer is shorter than n."""
    grams = len(answer.units) - n + 1
    return len(set(_runs(answer.units, n))) / grams if grams > 0 else None


def copied_prompt(answer: Answer) -> float | None:
    """Share of the answer's units that lie in long runs taken over from the prompt; None for an empty answer."""
    if not answer.units:
        return None
    size = DENSE_COPY_RUN if is_dense(answer.text) else COPY_RUN
    if len(answer.units) < size:
        return 0.0
    known = set(_runs(units(answer.prompt), size))
    covered = np.zeros(len(answer.units), dtype=bool)
    for start, run in enumerate(_runs(answer.units, size)):
        if run in known:
            covered[start : start + size] = True
    return float(covered.mean())


def language_match(answer: Answer) -> float | None:
    """1 when the answer is in a language that is wanted (see `wanted`); None when that or the answer's language is unsure."""
    wanted = wanted_languages(answer.fields, answer.references, answer.prompt, answer.language)
    if not wanted or answer.answer_language == UNSURE:
        return None
    return float(answer.answer_language in wanted)


def perplexity(answer: Answer) -> float | None:
    """exp of minus the mean log probability of the answer's tokens, at most 1e6."""
    return None if answer.logprob_mean is None else min(1e6, math.exp(min(50.0, -answer.logprob_mean)))


def longest_loop(tokens: Sequence[str]) -> tuple[int, int]:
    """(start, length) in units of the longest stretch that repeats with some period at least three times; (0, 0) for none.

    A stretch has period p where each unit equals the one p before it; periods at which too few do are passed over.
    """
    codes = {token: code for code, token in enumerate(dict.fromkeys(tokens))}
    ids = np.fromiter((codes[token] for token in tokens), np.int32, len(tokens))
    best = (0, 0)
    for period in range(1, min(len(ids) // MIN_LOOP_REPEATS, MAX_PERIOD) + 1):
        equal = ids[period:] == ids[:-period]
        enough = max((MIN_LOOP_REPEATS - 1) * period, MIN_LOOP_UNITS - period, best[1] - period + 1)
        if np.count_nonzero(equal) < enough:
            continue
        start, run = _longest_run(equal)
        if run >= enough:
            best = (start, run + period)
    return best


def _loop(answer: Answer) -> tuple[int, int]:
    if "loop" not in answer.kept:
        answer.kept["loop"] = list(longest_loop(answer.units)) if repetition(answer) else [0, 0]
    start, length = answer.kept["loop"]
    return start, length


def _runs(tokens: Sequence[str], size: int) -> zip[tuple[str, ...]]:
    return zip(*(tokens[start:] for start in range(size)), strict=False)


def _longest_run(flags: np.ndarray) -> tuple[int, int]:
    """(start, length) of the longest run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], flags.astype(np.int8), [0]))))
    starts, lengths = edges[::2], np.diff(edges)[::2]
    if not len(lengths):
        return 0, 0
    longest = int(np.argmax(lengths))
    return int(starts[longest]), int(lengths[longest])
