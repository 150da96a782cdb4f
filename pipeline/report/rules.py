"""What counts as a bad answer: one function per rule, each with its severity and what it saw.

A rule looks at one row and returns a Finding or None; its keyword arguments are its options in `report.rules`. Findings hold
numbers, codes and places only, never the row's text, so that a page without text can be mailed. Severities run from 0 to 1;
from FAIL_AT on a row counts as failed, below it is a warning.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from pipeline.core.errors import ParamsError
from pipeline.evaluation.language import language_of
from pipeline.evaluation.wanted import wanted_languages
from pipeline.report.page import percent
from pipeline.report.rows import Row

FAIL_AT = 0.5
# Lowest good value per metric. A deciding metric speaks alone; of the others the kindest one does.
DECIDING = {"choice": 1.0, "numeric": 1.0, "json_fields": 1.0}
LENIENT = {"exact": 1.0, "contains": 1.0, "token_f1": 0.5, "rouge_l": 0.4, "chrf": 40.0, "edit_similarity": 0.6, "bleu": 20.0}


@dataclass(frozen=True)
class Finding:
    """One rule's word on one row. values fill the sentence `rule.NAME.evidence`; span: characters or tokens of the answer."""

    rule: str
    severity: float
    values: dict[str, Any] = field(default_factory=dict)
    span: tuple[int, int] | None = None


Rule = Callable[..., "Finding | None"]


def failed_row(row: Row) -> Finding | None:
    """Generation gave an error instead of an answer."""
    if row.finish_reason != "error":
        return None
    return Finding("failed_row", 1.0, {"code": code_of(row.error)})


def rejected_input(row: Row) -> Finding | None:
    """The row was turned away before the model saw it."""
    return Finding("rejected_input", 0.5, {"reason": row.rejected, "stage": row.stage}) if row.rejected else None


def empty(row: Row) -> Finding | None:
    """Nothing but blanks came back, or nothing outside the reasoning."""
    blank = row.answer is not None and not row.answer.strip()
    return Finding("empty", 0.95, {"tokens": row.completion_tokens}) if blank or row.scores.get("empty", 0) > 0 else None


def looping(row: Row, *, min_share: float = 0.3) -> Finding | None:
    """One piece again and again: `loop_share` of the answer's words or characters is at least `min_share`."""
    share = row.scores.get("loop_share", 0.0)
    if share < min_share:
        return None
    return Finding("looping", 0.7 + 0.25 * share, {"share": percent(share), "start": percent(row.scores.get("loop_start", 0.0))})


def truncated(row: Row) -> Finding | None:
    """The answer stopped at generate.max_new_tokens, not at its own end; a warning where it meets its reference all the same."""
    cut = row.finish_reason == "length" or row.scores.get("truncated", 0) > 0
    severity = 0.4 if meets_reference(row) else 0.6  # said what was wanted before the limit
    return Finding("truncated", severity, {"tokens": row.completion_tokens}) if cut else None


def low_score(row: Row, **bars: float) -> Finding | None:
    """The score against the reference is below the bar of its metric; bars are options (`low_score: {chrf: 50}`)."""
    if row.finish_reason == "error":
        return None
    bars = {name: float(bar) for name, bar in (DECIDING | LENIENT | bars).items()}
    scored = {name: value for name, value in row.scores.items() if name in bars}
    deciding = [name for name in bars if name not in LENIENT and name in scored]
    if deciding:
        name = min(deciding, key=lambda item: (scored[item] / bars[item], item))
    elif scored:
        name = max(scored, key=lambda item: (scored[item] / bars[item], -list(bars).index(item)))
    else:
        return None
    share = scored[name] / bars[name]
    return None if share >= 1 else Finding("low_score", 0.5 + 0.3 * (1 - share), {"metric": name, "value": scored[name], "bar": bars[name]})


def meets_reference(row: Row) -> bool:
    """Scored against a reference, and not below the bars."""
    return not (DECIDING | LENIENT).keys().isdisjoint(row.scores) and low_score(row) is None


def unsure(row: Row, *, window: int = 6, window_below: float = -2.0, mean_below: float = -1.2) -> Finding | None:
    """A run of tokens the model itself found unlikely: mean log probability of `window` tokens in a row, or of the whole answer."""
    logprobs = row.token_logprobs
    if logprobs is None or not len(logprobs):
        return None
    size = min(window, len(logprobs))
    sums = np.cumsum(np.concatenate([[0.0], np.nan_to_num(logprobs.astype(np.float64), neginf=-50.0)]))
    means = (sums[size:] - sums[:-size]) / size
    start = int(np.argmin(means))
    lowest, mean = float(means[start]), float(sums[-1] / len(logprobs))
    if lowest >= window_below and mean >= mean_below:
        return None
    depth = min(1.0, max(window_below - lowest, mean_below - mean) / 4)
    return Finding(
        "unsure", 0.3 + 0.15 * depth, {"lowest": lowest, "mean": mean, "start": start, "end": start + size}, (start, start + size)
    )


def refusal(row: Row) -> Finding | None:
    """A phrase that declines the task, as the metric `refusal` finds it."""
    return Finding("refusal", 0.7) if row.scores.get("refusal", 0) > 0 else None


def wrong_language(row: Row) -> Finding | None:
    """The answer is in another language than was asked for, as the metric `language_match` finds it."""
    if row.scores.get("language_match", 1) >= 1:
        return None
    wanted = sorted(wanted_languages(row.meta, row.references, row.text, row.language))
    return Finding("wrong_language", 0.75, {"wanted": ", ".join(wanted), "got": language_of(row.answer or "")})


def invalid_json(row: Row) -> Finding | None:
    """JSON was expected and could not be read as it stands, or breaks its schema."""
    if row.scores.get("json_valid", 1) < 1:
        kind = next((kind for kind in ("cut", "repaired") if row.scores.get(f"json_{kind}", 0) > 0), "none")
        return Finding("invalid_json", 0.8, {"kind": f"@json.{kind}"})
    return Finding("invalid_json", 0.7, {"kind": "@json.schema"}) if row.scores.get("json_schema", 1) < 1 else None


def broken_instruction(row: Row) -> Finding | None:
    """An instruction that can be checked (IFEval's kinds) was not followed."""
    share = row.scores.get("instructions", 1.0)
    if share >= 1:
        return None
    return Finding("broken_instruction", 0.5 + 0.3 * (1 - share), {"which": ", ".join(row.broken) or "–", "share": percent(share)})


def sensitive_hit(row: Row) -> Finding | None:
    """A word of evaluate.sensitive_words stands in the answer."""
    if row.scores.get("sensitive", 0) <= 0:
        return None
    places = ", ".join(f"{word} ({start}–{end})" for word, start, end in row.hits[:5]) + (" …" if len(row.hits) > 5 else "")
    return Finding("sensitive_hit", 0.9, {"places": places})


def copied_prompt(row: Row, *, min_share: float = 0.8) -> Finding | None:
    """The answer is mostly the question again, as the metric `copied_prompt` measures it.

    No fault where the right answer is in it (a span of the text that was asked about); a warning where it is only like the reference, as
    the first sentence of a text is like its title.
    """
    share = row.scores.get("copied_prompt", 0)
    right = max(row.scores.get(name, 0.0) for name in ("exact", "contains", *DECIDING)) >= 1
    if share < min_share or right:
        return None
    return Finding("copied_prompt", 0.4 if meets_reference(row) else 0.6, {"share": percent(share)})


def length_mismatch(row: Row, *, shorter: float = 0.2, longer: float = 8.0) -> Finding | None:
    """The answer is far shorter or longer than every reference (characters; short references are given room)."""
    if not row.references or not row.answer:
        return None
    got = len(row.answer.strip())
    ratio = min((got / max(len(reference), 1) for reference in row.references), key=lambda value: abs(np.log(max(value, 1e-9))))
    longest = max(map(len, row.references))
    if shorter <= ratio <= longer or (ratio > 1 and got - longest < 400) or (ratio < 1 and longest < 20):
        return None
    return Finding("length_mismatch", 0.4, {"got": got, "wanted": longest, "ratio": ratio})


RULES: dict[str, Rule] = {
    "failed_row": failed_row, "rejected_input": rejected_input, "empty": empty, "sensitive_hit": sensitive_hit,
    "looping": looping, "invalid_json": invalid_json, "wrong_language": wrong_language, "refusal": refusal,
    "broken_instruction": broken_instruction, "truncated": truncated, "copied_prompt": copied_prompt,
    "low_score": low_score, "length_mismatch": length_mismatch,
    "unsure": unsure,
}  # fmt: skip


def resolve(configured: Any) -> dict[str, Callable[[Row], Finding | None]]:
    """Rules by name with their options bound. Raises ParamsError naming an unknown rule or option."""
    items = list(RULES) if configured == "auto" else list(configured)
    resolved: dict[str, Callable[[Row], Finding | None]] = {}
    for item in items:
        for name, options in item.items() if isinstance(item, dict) else [(item, {})]:
            if name not in RULES:
                raise ParamsError(f"report.rules: no rule {name!r}; there are {', '.join(RULES)}")
            try:
                inspect.signature(RULES[name]).bind(Row(0), **options)
            except TypeError as error:
                known = [key for key in inspect.signature(RULES[name]).parameters if key != "row"]
                raise ParamsError(f"report.rules.{name}: {error}; options are {', '.join(known) or 'none'}") from None
            resolved[name] = partial(RULES[name], **options)
    return resolved


def code_of(error: str | None) -> str:
    """The code of a `code: detail` text."""
    return (error or "unknown").split(":", 1)[0].strip()[:60]
