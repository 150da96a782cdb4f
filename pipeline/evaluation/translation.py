"""BLEU and chrF per answer, equal to `sacrebleu --sentence-level`; the counting is ours and several times faster.

BLEU (Papineni et al., 2002): all references count together, exponential smoothing, effective order, so that a short answer
is not 0 for want of 4-grams. Tokeniser by the script of the references: `zh`, `char` for Japanese and Thai, else `13a`.
chrF (Popović, 2015): character 6-grams without blanks, beta 2, best reference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a
from sacrebleu.tokenizers.tokenizer_char import TokenizerChar
from sacrebleu.tokenizers.tokenizer_zh import TokenizerZh

from pipeline.evaluation.answer import Answer
from pipeline.evaluation.units import script_of

BLEU_ORDER = 4
CHRF_ORDER = 6
CHRF_BETA = 2
ALPHABET = 1024  # six characters of ten bits fill an int64

Ngrams = Counter[tuple[str, ...]]
TOKENISER_OF = {"zh": "zh", "ja": "char", "dense": "char", "words": "13a"}


@cache
def tokeniser(name: str) -> Callable[[str], str]:
    """One of sacrebleu's own tokenisers."""
    kinds: dict[str, Callable[[], Callable[[str], str]]] = {"13a": Tokenizer13a, "zh": TokenizerZh, "char": TokenizerChar}
    return kinds[name]()


def tokeniser_name(answer: Answer) -> str:
    """sacrebleu's name of the tokeniser that fits the references' script."""
    return TOKENISER_OF[script_of("\n".join(answer.references))]


def bleu(answer: Answer) -> float:
    """Sentence BLEU, 0 to 100."""
    return bleu_of(bleu_statistics(answer))


def bleu_statistics(answer: Answer) -> list[int]:
    """[answer length, reference length, 4 matches, 4 totals]; sums of them over rows give corpus BLEU."""
    split = tokeniser(tokeniser_name(answer))
    ours = split(answer.candidate.rstrip()).split()
    theirs = [split(text.rstrip()).split() for text in answer.references]
    matches, totals = [], []
    for n in range(1, BLEU_ORDER + 1):
        counts = _ngrams(ours, n)
        best = _ngrams(theirs[0], n)
        for tokens in theirs[1:]:
            best |= _ngrams(tokens, n)
        matches.append(sum(min(count, best[gram]) for gram, count in counts.items() if gram in best))
        totals.append(max(0, len(ours) - n + 1))
    nearest = min((abs(len(tokens) - len(ours)), len(tokens)) for tokens in theirs)[1]
    return [len(ours), nearest, *matches, *totals]


def bleu_of(statistics: Sequence[int], *, effective_order: bool = True) -> float:
    """BLEU of one row's or of summed statistics; for a corpus pass effective_order=False, as sacrebleu does."""
    ours, theirs, *counts = (int(value) for value in statistics)
    score = BLEU.compute_bleu(
        counts[:BLEU_ORDER], counts[BLEU_ORDER:], ours, theirs, smooth_method="exp", effective_order=effective_order
    )  # fmt: skip
    return min(100.0, float(score.score))


def chrf(answer: Answer) -> float:
    """Sentence chrF, 0 to 100."""
    return max(_chrf("".join(answer.candidate.split()), "".join(text.split())) for text in answer.references)


def _chrf(ours: str, theirs: str) -> float:
    alphabet = {c: i for i, c in enumerate(dict.fromkeys(ours + theirs))}
    if len(alphabet) > ALPHABET:
        return float(CHRF().sentence_score(ours, [theirs]).score)
    a, b = (np.fromiter((alphabet[c] for c in text), np.int64, len(text)) for text in (ours, theirs))
    precision = recall = 0.0
    orders = 0
    grams_a, grams_b = a, b
    for n in range(1, CHRF_ORDER + 1):
        if n > 1:
            grams_a, grams_b = (grams[:-1] * ALPHABET + chars[n - 1 :] for grams, chars in ((grams_a, a), (grams_b, b)))
        if not len(grams_a) or not len(grams_b):
            break
        matches = _common(grams_a, grams_b)
        precision += matches / len(grams_a)
        recall += matches / len(grams_b)
        orders += 1
    if not precision + recall:
        return 0.0
    precision, recall = precision / orders, recall / orders
    factor = CHRF_BETA**2
    return 100 * (1 + factor) * precision * recall / (factor * precision + recall)


def _common(a: np.ndarray, b: np.ndarray) -> int:
    """Size of the multiset intersection of two arrays."""
    values, counts = np.unique(a, return_counts=True)
    others, other_counts = np.unique(b, return_counts=True)
    places = np.searchsorted(values, others)
    places[places == len(values)] = 0
    same = values[places] == others
    return int(np.minimum(counts[places], other_counts)[same].sum())


def _ngrams(tokens: Sequence[str], n: int) -> Ngrams:
    return Counter(zip(*(tokens[start:] for start in range(n)), strict=False))
