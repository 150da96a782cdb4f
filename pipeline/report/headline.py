"""What people look at first: the verdict, and which metrics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pipeline.evaluation.gate import is_open, sentence
from pipeline.report.page import visible

MAX_REASON_CHARS = 500
ORDER = (
    "exact", "contains", "numeric", "choice", "token_f1", "chrf", "bleu", "rouge_l", "json_valid", "json_fields", "instructions_all",
    "language_match", "truncated", "loop_share", "refusal", "empty", "sensitive",
)  # fmt: skip


def split(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """Names people look at first, in their order, and the others as they come."""
    names = list(names)
    return [name for name in ORDER if name in names], [name for name in names if name not in ORDER]


def verdict_of(gate: dict[str, Any] | None) -> str:
    """`green`, `red`, `open` (green, for want of anything to hold it against) or `none`."""
    if gate is None:
        return "none"
    return "open" if is_open(gate) else str(gate["verdict"])


def reasons(gate: dict[str, Any] | None) -> list[dict[str, str]]:
    """Why the gate is red, each in `en` and `zh`; as it stands where an older gate.json has no key for it."""
    red = [check for check in (gate or {}).get("checks", []) if check.get("red") and "key" in check]
    told = [{language: sentence(check["key"], language, check["words"]) for language in ("en", "zh")} for check in red]
    told = told or [dict.fromkeys(("en", "zh"), str(reason)) for reason in (gate or {}).get("reasons", [])]
    return [{language: visible(text, MAX_REASON_CHARS) for language, text in item.items()} for item in told]
