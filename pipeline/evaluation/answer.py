"""One answer with everything a metric may look at. What several metrics need is computed once and kept on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pipeline.evaluation import jsontext
from pipeline.evaluation.language import language_of
from pipeline.evaluation.units import has_foreign_letters, is_dense, rouge_units, units


@dataclass
class Answer:
    """text: the answer without its reasoning block. extracted: the part compared with references, None when not found.

    references: texts that are not blank. prompt: what was asked. fields: the row's meta. language: of the prompt, `und` when
    unsure. logprob_mean and logprob_min: natural logs, None for answers made elsewhere.
    """

    text: str
    extracted: str | None
    references: list[str] = field(default_factory=list)
    prompt: str = ""
    language: str = "und"
    finish_reason: str = "stop"
    fields: dict[str, Any] = field(default_factory=dict)
    overrides: dict[str, Any] = field(default_factory=dict)
    logprob_mean: float | None = None
    logprob_min: float | None = None
    wants_json: bool = False
    kept: dict[str, list[int]] = field(default_factory=dict)  # counts that are needed twice

    @cached_property
    def candidate(self) -> str:
        """The text compared with references: empty where the extractor found nothing."""
        return self.extracted or ""

    @cached_property
    def dense(self) -> bool:
        """Whether the answer or a reference is in a script without blanks; then units are characters."""
        return is_dense(self.candidate) or any(map(is_dense, self.references))

    @cached_property
    def plain_english(self) -> bool:
        """Whether rouge-score's own English tokeniser fits: no reference has letters beyond a to z, or it is English all the same."""
        return not self.dense and not any(has_foreign_letters(text) and language_of(text) != "en" for text in self.references)

    @cached_property
    def rouge_candidate(self) -> list[str]:
        return rouge_units(self.candidate, plain_english=self.plain_english)

    @cached_property
    def rouge_references(self) -> list[list[str]]:
        return [rouge_units(text, plain_english=self.plain_english) for text in self.references]

    @cached_property
    def units(self) -> list[str]:
        """Units of the whole answer, for metrics without a reference."""
        return units(self.text)

    @cached_property
    def answer_language(self) -> str:
        return language_of(self.text)

    @cached_property
    def parsed(self) -> jsontext.Parsed:
        return jsontext.parse_json(self.text, self.finish_reason)
