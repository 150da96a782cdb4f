"""Metrics of answers that have a form: a number, a choice letter, JSON, a pattern."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from typing import Any

import regex
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from jsonschema.validators import validator_for

from pipeline.core.errors import ParamsError
from pipeline.evaluation import jsontext
from pipeline.evaluation.answer import Answer
from pipeline.evaluation.extract import REGEX_TIMEOUT_S, choice_letters
from pipeline.evaluation.numbers import last_number, whole_number

ANSWER_MARK = "####"  # what stands before the result in worked solutions
_BARE_LETTER = regex.compile(r"\s*[A-HＡ-Ｈ]\s*")


def numeric(answer: Answer, tolerance: float = 1e-6, bare: bool = False) -> float | None:
    """1 when the answer's last number equals a reference's within a relative tolerance.

    bare: only for rows whose references are nothing but a number; else the last number of each reference counts.
    """
    wanted = [value for text in answer.references if (value := _reference_number(text, bare)) is not None]
    if not wanted or (bare and len(wanted) < len(answer.references)):
        return None
    found = last_number(answer.candidate)
    return float(found is not None and any(_close(found.value, value, tolerance) for value in wanted))


def choice(answer: Answer, bare: bool = False, all: bool = False) -> float | None:
    """1 when the chosen letters are those of a reference; all: the references together are the letters to choose.

    bare: only for rows whose references are single letters.
    """
    if bare and not _BARE_LETTER.fullmatch("".join(answer.references[:1])):
        return None
    wanted = [_letters(text) for text in answer.references]
    if not any(wanted):
        return None
    targets = {"".join(sorted(set("".join(wanted))))} if all else {letters for letters in wanted if letters}
    return float(choice_letters(answer.candidate) in targets)


def json_valid(answer: Answer, expected: bool | None = None) -> float | None:
    """1 when the answer is JSON, bare or in one fence; None where no JSON is expected."""
    return float(answer.parsed.kind in ("strict", "fenced")) if _expected(answer, expected) else None


def json_is(answer: Answer, kind: str, expected: bool | None = None) -> float | None:
    """1 when the answer is JSON of one class; None where no JSON is expected."""
    return float(answer.parsed.kind == kind) if _expected(answer, expected) else None


def json_schema(answer: Answer, schema: dict[str, Any] | None = None) -> float | None:
    """1 when the answer's JSON, not repaired, fits the schema of params or of the row; None where there is no schema."""
    schema = schema or row_schema(answer)
    if not isinstance(schema, dict):
        return None
    if answer.parsed.kind not in ("strict", "fenced"):
        return 0.0
    return float(_validator(jsontext.canonical(schema)).is_valid(answer.parsed.value))


def json_fields(answer: Answer) -> float | None:
    """F1 of the fields (dotted paths with their values) of the answer's JSON against a reference that is JSON, else None."""
    wanted = [_leaves(jsontext.strict(text)) for text in answer.references if _is_json(text)]
    if not wanted:
        return None
    found = _leaves(answer.parsed.value) if answer.parsed.kind in ("strict", "fenced") else set()
    return max(2 * len(found & leaves) / (len(found) + len(leaves)) for leaves in wanted)


def regex_match(answer: Answer, pattern: str) -> float:
    """1 when the pattern is found in the part that is scored."""
    try:
        return float(_pattern(pattern).search(answer.candidate, timeout=REGEX_TIMEOUT_S) is not None)
    except TimeoutError:
        return 0.0


def row_schema(answer: Answer) -> dict[str, Any] | None:
    """The JSON schema a row carries in its overrides or fields."""
    for source in (answer.overrides, answer.fields):
        if isinstance(source.get("json_schema"), dict):
            return dict(source["json_schema"])
    return None


def _expected(answer: Answer, expected: bool | None) -> bool:
    """JSON is expected where params, the extractor, the row's schema or its reference say so."""
    if expected is not None:
        return expected
    return answer.wants_json or row_schema(answer) is not None or any(_is_json(text) for text in answer.references)


def _is_json(text: str) -> bool:
    try:
        jsontext.strict(text)
    except ValueError:
        return False
    return True


def _leaves(value: Any, path: str = "") -> set[tuple[str, str]]:
    if isinstance(value, dict) and value:
        return {leaf for key, item in value.items() for leaf in _leaves(item, f"{path}.{key}")}
    if isinstance(value, list) and value:
        return {leaf for index, item in enumerate(value) for leaf in _leaves(item, f"{path}.{index}")}
    return {(path, jsontext.canonical(value))}


def _reference_number(text: str, bare: bool) -> Fraction | None:
    marked = ANSWER_MARK in text
    text = text.rpartition(ANSWER_MARK)[2]
    if bare:
        return whole_number(text)
    found = last_number(text)
    return found.value if found else whole_number(text) if marked else None


def _letters(text: str) -> str:
    letters = "".join(regex.findall(r"[A-H]", text.translate({0xFF21 + i: 65 + i for i in range(26)})))
    return "".join(sorted(set(letters))) if regex.fullmatch(r"[A-HＡ-Ｈ\s,，、]+", text) else choice_letters(text)


def _close(a: Fraction, b: Fraction, tolerance: float) -> bool:
    return abs(a - b) <= Fraction(tolerance) * max(abs(a), abs(b))


@lru_cache(maxsize=256)
def _validator(schema: str) -> Any:
    loaded = jsontext.strict(schema)
    kind = validator_for(loaded, default=Draft202012Validator)
    try:
        kind.check_schema(loaded)
    except SchemaError as error:
        raise ParamsError(f"json_schema: {error.message} at {'/'.join(map(str, error.path)) or 'the top'}; mend the schema") from None
    return kind(loaded)


@lru_cache(maxsize=64)
def _pattern(pattern: str) -> regex.Pattern[str]:
    try:
        return regex.compile(pattern)
    except regex.error as error:
        raise ParamsError(f"evaluate.metrics.regex_match.pattern: {error} (got {pattern!r})") from None
