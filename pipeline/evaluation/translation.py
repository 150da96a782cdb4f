"""BLEU and chrF per answer, equal to `sacrebleu --sentence-level`; the counting is ours and several times faster.

BLEU (Papineni et al., 2002): all references count together, exponential smoothing, effective order, so that a short answer
is not 0 for want of 4-grams. Tokeniser by the script of the references: `zh`, `char` for Japanese and Thai, else `13a`.
chrF (Popović, 2015): character 6-grams without blanks, beta 2, best reference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from pipeline.evaluation.answer import Answer
from pipeline.evaluation.tokenisers import TOKENISERS
from pipeline.evaluation.units import script_of

BLEU_ORDER = 4
CHRF_ORDER = 6
CHRF_BETA = 2
ALPHABET = 1024  # six characters of ten bits fill an int64

Ngrams = Counter[tuple[str, ...]]
TOKENISER_OF = {"zh": "zh", "ja": "char", "dense": "char", "words": "13a"}


def tokeniser_name(answer: Answer) -> str:
    """sacrebleu's name of the tokeniser that fits the references' script."""
    return TOKENISER_OF[script_of("\n".join(answer.references))]


def bleu(answer: Answer) -> float:
    """Sentence BLEU, 0 to 100."""
    return bleu_of(bleu_statistics(answer))


def chrf(answer: Answer) -> float:
    """Sentence chrF, 0 to 100."""
    return chrf_of(chrf_statistics(answer))


def bleu_statistics(answer: Answer) -> list[int]:
    """[answer length, reference length, 4 matches, 4 totals]; sums of them over rows give corpus BLEU. Counted once per answer."""
    if "bleu" not in answer.kept:
        answer.kept["bleu"] = _count_bleu(answer)
    return answer.kept["bleu"]


def chrf_statistics(answer: Answer) -> list[int]:
    """For each order [n-grams of the answer, of the best reference, in common]; sums of them over rows give corpus chrF."""
    if "chrf" not in answer.kept:
        ours = "".join(answer.candidate.split())
        counted = [_count_chrf(ours, "".join(text.split())) for text in answer.references]
        answer.kept["chrf"] = max(counted, key=chrf_of)
    return answer.kept["chrf"]


def bleu_of(statistics: Sequence[int], *, effective_order: bool = True) -> float:
    """BLEU of one row's or of summed statistics; for a corpus pass effective_order=False, as sacrebleu does."""
    ours, theirs, *counts = (int(value) for value in statistics)
    score = BLEU.compute_bleu(
        counts[:BLEU_ORDER], counts[BLEU_ORDER:], ours, theirs, smooth_method="exp", effective_order=effective_order
    )  # fmt: skip
    return min(100.0, float(score.score))


def chrf_of(statistics: Sequence[int]) -> float:
    """chrF of one row's or of summed statistics: F of the precisions and recalls averaged over the orders that both sides have."""
    precision = recall = 0.0
    orders = 0
    for ours, theirs, common in zip(statistics[::3], statistics[1::3], statistics[2::3], strict=True):
        if ours and theirs:
            precision, recall, orders = precision + common / ours, recall + common / theirs, orders + 1
    if not precision + recall:
        return 0.0
    precision, recall = precision / orders, recall / orders
    factor = CHRF_BETA**2
    return float(100 * (1 + factor) * precision * recall / (factor * precision + recall))


# What is summed over rows for the score of the whole corpus, beside the mean over rows: how to count one row, how to score the sums.
CORPUS: dict[str, tuple[Callable[[Answer], list[int]], Callable[[Sequence[int]], float]]] = {
    "bleu": (bleu_statistics, lambda sums: bleu_of(sums, effective_order=False)),
    "chrf": (chrf_statistics, chrf_of),
}


def _count_bleu(answer: Answer) -> list[int]:
    split = TOKENISERS[tokeniser_name(answer)]
    ours = split(answer.candidate)
    theirs = [split(text) for text in answer.references]
    matches: list[int] = []
    totals: list[int] = []
    for n in range(1, BLEU_ORDER + 1):
        totals.append(max(0, len(ours) - n + 1))
        if n > 1 and not matches[-1]:
            matches.append(0)  # no shorter n-gram matched
            continue
        counts = _ngrams(ours, n)
        best = _ngrams(theirs[0], n)
        for tokens in theirs[1:]:
            best |= _ngrams(tokens, n)
        matches.append(sum(min(count, best[gram]) for gram, count in counts.items() if gram in best))
    nearest = min((abs(len(tokens) - len(ours)), len(tokens)) for tokens in theirs)[1]
    return [len(ours), nearest, *matches, *totals]


def _count_chrf(ours: str, theirs: str) -> list[int]:
    codes = np.frombuffer((ours + theirs).encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.int64)
    if len(codes) and codes.max() >= ALPHABET:
        alphabet, codes = np.unique(codes, return_inverse=True)
        if len(alphabet) > ALPHABET:
            return [int(count) for count in CHRF()._extract_corpus_statistics([ours], [[theirs]])[0]]
    a, b = codes[: len(ours)], codes[len(ours) :]
    counted: list[int] = []
    common = 1
    grams_a, grams_b = a, b
    for n in range(1, CHRF_ORDER + 1):
        counts = max(0, len(a) - n + 1), max(0, len(b) - n + 1)
        if n > 1 and common:
            grams_a, grams_b = (grams[:-1] * ALPHABET + chars[n - 1 :] for grams, chars in ((grams_a, a), (grams_b, b)))
        common = _common(grams_a, grams_b) if common and all(counts) else 0  # without a match no longer n-gram matches either
        counted += [counts[0] if counts[1] else 0, counts[1], common]
    return counted


def _common(a: np.ndarray, b: np.ndarray) -> int:
    """Size of the multiset intersection of two arrays of codes below 2^62: sorted together, the lowest bit telling them apart."""
    both = np.concatenate((a << 1, (b << 1) | 1))
    both.sort()
    codes = both >> 1
    starts = np.concatenate(([0], np.flatnonzero(codes[1:] != codes[:-1]) + 1))
    from_b = np.add.reduceat(both & 1, starts)
    totals = np.diff(starts, append=len(both))
    return int(np.minimum(from_b, totals - from_b).sum())


def _ngrams(tokens: Sequence[str], n: int) -> Ngrams:
    return Counter(zip(*(tokens[start:] for start in range(n)), strict=False))
