"""Metrics that compare an answer with its references unit by unit. Several references: the best one counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rapidfuzz.distance import LCSseq, Levenshtein

from pipeline.evaluation.answer import Answer
from pipeline.evaluation.numbers import whole_number
from pipeline.evaluation.units import fold, normal_units, squad_normal, units


def exact(answer: Answer) -> float:
    """1 when the normalised answer equals a normalised reference.

    Normalised as SQuAD does (lower case, no ASCII punctuation, no articles); scripts without blanks: width, case and
    punctuation folded. Beyond SQuAD: two different numbers are never equal (3.5 and 35, -5 and 5), and texts of which
    nothing is left are compared as they are.
    """
    return float(any(_same(answer.candidate, reference, answer.dense) for reference in answer.references))


def contains(answer: Answer) -> float:
    """1 when a normalised reference stands in the normalised answer, at word ends where there are words."""
    return float(any(_within(reference, answer.candidate, answer.dense) for reference in answer.references))


def token_f1(answer: Answer) -> float:
    """Harmonic mean of unit precision and recall (SQuAD F1), on the units that `exact` compares."""
    return max(_f1(answer.candidate, reference, answer.dense) for reference in answer.references)


def rouge_n(answer: Answer, n: int) -> float:
    """ROUGE-N F-measure (Lin, 2004), as rouge-score computes it without stemming.

    A reference of fewer than n units is compared in n-grams as long as itself, else equal short texts would be 0.
    """
    ours = answer.rouge_candidate
    return max(_rouge_n(ours, theirs, min(n, len(theirs))) for theirs in answer.rouge_references)


def rouge_l(answer: Answer) -> float:
    """ROUGE-L F-measure on the longest common subsequence of units."""
    return max(_lcs_f(answer.rouge_candidate, theirs) for theirs in answer.rouge_references)


def edit_similarity(answer: Answer) -> float:
    """1 - Levenshtein distance / longer length, in characters after folding width and case."""
    ours = " ".join(fold(answer.candidate).split())
    return max(float(Levenshtein.normalized_similarity(ours, " ".join(fold(text).split()))) for text in answer.references)


def length_ratio(answer: Answer) -> float | None:
    """Characters of the answer over those of the reference nearest in length; 1 is ideal."""
    lengths = [len(text) for text in answer.references]
    nearest = min(lengths, key=lambda length: (abs(length - len(answer.candidate)), length))
    return len(answer.candidate) / nearest


def _same(ours: str, theirs: str, dense: bool) -> bool:
    a, b = normal_units(ours, dense), normal_units(theirs, dense)
    if not a and not b:
        return fold(ours).split() == fold(theirs).split()
    return ("".join(a) == "".join(b) if dense else a == b) and not _different_numbers(ours, theirs)


def _different_numbers(ours: str, theirs: str) -> bool:
    """Whether both are numbers and nothing else, of different value: dropping punctuation must not make them equal."""
    a = whole_number(ours)
    b = whole_number(theirs) if a is not None else None
    return a is not None and b is not None and a != b


def _within(reference: str, text: str, dense: bool) -> bool:
    if dense:
        wanted = "".join(units(reference))
        return bool(wanted) and wanted in "".join(units(text))
    wanted = squad_normal(reference)
    if not wanted:
        return fold(reference).strip() in fold(text)
    return f" {wanted} " in f" {squad_normal(text)} "


def _f1(ours: str, theirs: str, dense: bool) -> float:
    a, b = normal_units(ours, dense), normal_units(theirs, dense)
    if not a or not b or _different_numbers(ours, theirs):
        return float(_same(ours, theirs, dense))
    common = (Counter(a) & Counter(b)).total()
    return 2 * common / (len(a) + len(b))


def _ngrams(tokens: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(tokens[start:] for start in range(n)), strict=False))


def _rouge_n(ours: Sequence[str], theirs: Sequence[str], n: int) -> float:
    a, b = _ngrams(ours, n), _ngrams(theirs, n)
    total = a.total() + b.total()
    return 2 * sum(min(count, b[gram]) for gram, count in a.items() if gram in b) / total if total else 0.0


def _lcs_f(ours: Sequence[str], theirs: Sequence[str]) -> float:
    if not ours or not theirs:
        return 0.0
    return 2 * int(LCSseq.similarity(ours, theirs)) / (len(ours) + len(theirs))
