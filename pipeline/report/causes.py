"""Why a row failed: one cause for each case, with the reason it was chosen.

data: the input itself is damaged. prompt: what we ask with. model: what it cannot do. system: limits and errors.
The first sign in this order wins: errors, the input, the prompt, the answer, then an odd length. A person's label overrides all of it.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from ftfy.badness import is_bad

from pipeline.report.rows import Row
from pipeline.report.rules import Finding

CAUSES = ("data", "prompt", "model", "system")
ODD_RATIO = 4.0
MIN_USUAL_ROWS = 20
LIMIT_REASONS = ("prompt_too_long", "too_long", "context", "limit", "timeout")


@dataclass(frozen=True)
class Cause:
    """kind: one of CAUSES; reason: key of the sentence `reason.KEY`; values fill it."""

    kind: str
    reason: str
    values: dict[str, Any]


@dataclass(frozen=True)
class InputNorms:
    """What is usual for tonight's inputs."""

    lengths: dict[str, tuple[float, float]] = field(default_factory=dict)  # language: median and spread of log characters
    conflicting: frozenset[int] = frozenset()  # ordinals whose text stands there again with another reference

    def odd(self, language: str, chars: int) -> bool:
        """More than ODD_RATIO times longer or shorter than usual in its language, and far outside the spread (robust z over 5)."""
        centre, spread = self.lengths.get(language, (0.0, 0.0))
        distance = abs(math.log(max(chars, 1)) - centre)
        return language in self.lengths and distance > math.log(ODD_RATIO) and distance > 5 * spread


def norms(rows: Iterable[tuple[int, str, str, tuple[str, ...]]]) -> InputNorms:
    """Learn what is usual from (ordinal, language, text, references) of all rows."""
    lengths: dict[str, list[float]] = defaultdict(list)
    seen: dict[int, tuple[int, int]] = {}
    conflicting: set[int] = set()
    for ordinal, language, text, references in rows:
        lengths[language].append(math.log(max(len(text), 1)))
        if references:
            key, answer = hash(" ".join(text.split())), hash(references)
            first = seen.setdefault(key, (ordinal, answer))
            if first[1] != answer:
                conflicting |= {first[0], ordinal}
    usual = {}
    for language, values in lengths.items():
        if len(values) >= MIN_USUAL_ROWS:
            centre = median(values)
            usual[language] = (centre, 1.4826 * median(abs(value - centre) for value in values))
    return InputNorms(usual, frozenset(conflicting))


def cause_of(row: Row, findings: list[Finding], usual: InputNorms) -> Cause:
    """The one cause of a case."""
    rules = {finding.rule: finding for finding in findings}
    for check in CHECKS:
        found = check(row, rules, usual)
        if found is not None:
            return found
    return Cause("model", "wrong_answer", {})


Check = Callable[[Row, dict[str, Finding], InputNorms], "Cause | None"]


def _turned_away(row: Row, rules: dict[str, Finding], usual: InputNorms) -> Cause | None:
    if "rejected_input" in rules:
        limit = any(word in (row.rejected or "") for word in LIMIT_REASONS)
        return Cause("system" if limit else "data", "over_limit" if limit else "bad_input", {"reason": row.rejected})
    return Cause("system", "error", rules["failed_row"].values) if "failed_row" in rules else None


def _input(row: Row, rules: dict[str, Finding], usual: InputNorms) -> Cause | None:
    if row.ordinal in usual.conflicting and "low_score" in rules:
        return Cause("data", "conflicting_reference", {})
    if is_bad(row.text):
        return Cause("data", "mojibake", {})
    if "\ufffd" in row.text:
        return Cause("data", "lost_characters", {})
    if _MARKUP.search(_FENCED.sub("", row.text)):
        return Cause("data", "markup", {})
    return Cause("data", "cut", {}) if looks_cut(row.text) else None


def _prompt(row: Row, rules: dict[str, Finding], usual: InputNorms) -> Cause | None:
    if row.truncated_tokens:
        return Cause("prompt", "prompt_cut", {"tokens": row.truncated_tokens})
    if _UNFILLED.search(row.prompt) and not _UNFILLED.search(row.text):
        return Cause("prompt", "missing_field", {})
    if "invalid_json" in rules and "truncated" not in rules:
        if "json" not in row.prompt.lower():
            return Cause("prompt", "format_not_asked", {})
        if "{" not in row.prompt and "[" not in row.prompt:
            return Cause("prompt", "format_not_shown", {})
    return None


def _answer(row: Row, rules: dict[str, Finding], usual: InputNorms) -> Cause | None:
    if "looping" in rules:
        return Cause("model", "loop", rules["looping"].values)
    for rule, reason in (("wrong_language", "wrong_language"), ("refusal", "refusal"), ("copied_prompt", "echo"), ("empty", "silence")):
        if rule in rules:
            return Cause("model", reason, {})
    return Cause("system", "answer_limit", rules["truncated"].values) if "truncated" in rules else None


def _hint(row: Row, rules: dict[str, Finding], usual: InputNorms) -> Cause | None:
    """What may explain a wrong answer where nothing else does."""
    if usual.odd(row.language, len(row.text)):
        return Cause("data", "odd_length", {"chars": len(row.text)})
    return Cause("model", "unsure", rules["unsure"].values) if "unsure" in rules else None


CHECKS: tuple[Check, ...] = (_turned_away, _input, _prompt, _answer, _hint)

_FENCED = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.DOTALL)
_MARKUP = re.compile(
    r"</?(?:div|span|p|br|td|tr|table|font|li|ul|a|img|script|style|h[1-6])\b[^>]*>|&(?:nbsp|amp|lt|gt|quot|#\d+);", re.IGNORECASE
)
_UNFILLED = re.compile(r"\{\{[^}]*\}\}|\bundefined\b|:\s*(?:None|nan|null)\s*(?:\n|$)")
# Not `;`, which ends code, nor 的, which ends whole phrases; 调和 and 参与 are words.
_OPEN_END = re.compile(
    r"[,，、(（\[【；]\s*$|(?<![-–—])[-–—]\s*$|\b(?:and|or|the|of|to|an|with|because)\s*$"
    r"|(?:因为|但是|以及|或者|并且|(?<![调缓饱总温柔求共谐平祥中附])和|(?<![参给赠授])与)\s*$",
    re.IGNORECASE,
)


def looks_cut(text: str) -> bool:
    """The text ends in the middle: an open clause after at least a sentence's worth of words.

    A closing colon is an honest end of a prompt, and so is any end of a short one.
    """
    return len(text) >= 60 and bool(_OPEN_END.search(text[-40:]))
