"""Which metrics people look at first."""

from __future__ import annotations

from collections.abc import Iterable

ORDER = (
    "exact", "contains", "numeric", "choice", "token_f1", "chrf", "bleu", "rouge_l", "json_valid", "json_fields", "instructions_all",
    "language_match", "truncated", "loop_share", "refusal", "empty", "sensitive",
)  # fmt: skip


def split(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """Names people look at first, in their order, and the others as they come."""
    names = list(names)
    return [name for name in ORDER if name in names], [name for name in names if name not in ORDER]
