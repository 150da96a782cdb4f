"""Checkable instructions (Zhou et al., 2023, IFEval, arXiv 2311.07911): rules that say whether an answer did as it was told.

A row carries `instruction_id_list` and `kwargs`, one mapping per instruction. Each rule takes the answer and its mapping. Words and
sentences of scripts without blanks are counted by characters and by their full stops.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import regex

from pipeline.evaluation.answer import Answer
from pipeline.evaluation.language import language_of
from pipeline.evaluation.units import is_dense, units

IDS, KWARGS = "instruction_id_list", "kwargs"
Rule = Callable[[str, dict[str, Any]], bool]

_ABBREVIATION = regex.compile(r"\b(?:Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|vs|etc|e\.g|i\.e|Inc|Ltd|Co|No|[A-Z])\.$")
_SENTENCE_END = regex.compile(r"[.!?]+[\"'”’)\]]*(?=\s|$)|[。！？]+[”’」』）]*")
_WORD = regex.compile(r"\w+")
_TOKEN = regex.compile(r"[\w]+(?:['’-]\w+)*|[^\w\s]")
_JSON_FENCE = regex.compile(r"\A```(?:json)?\s*|\s*```\Z", flags=regex.I)


def followed(answer: Answer) -> list[tuple[str, bool]]:
    """(instruction, whether it was followed) for the row's known instructions; an empty answer follows none."""
    return [(name, _follows(RULES[name], answer.text, given)) for name, given in _asked(answer.fields)]


def given_language(fields: Mapping[str, Any]) -> set[str]:
    """Codes of the languages that a row's instructions ask for."""
    asked = (given.get("language") for name, given in _asked(fields) if name == "language:response_language")
    return {_code(language) for language in asked if isinstance(language, str)}


def _asked(fields: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The row's known instructions, each with its values that are not null."""
    ids, kwargs = fields.get(IDS), fields.get(KWARGS) or []
    for place, name in enumerate(ids if isinstance(ids, list) else []):
        if isinstance(name, str) and name in RULES:
            given = kwargs[place] if isinstance(kwargs, list) and place < len(kwargs) and isinstance(kwargs[place], dict) else {}
            yield name, {key: value for key, value in given.items() if value is not None}


def instructions(answer: Answer) -> float | None:
    """Share of the row's instructions that the answer follows; None for a row without any."""
    results = [good for _, good in followed(answer)]
    return sum(results) / len(results) if results else None


def instructions_all(answer: Answer) -> float | None:
    """1 when every instruction is followed (IFEval's strict prompt-level accuracy)."""
    results = [good for _, good in followed(answer)]
    return float(all(results)) if results else None


def _follows(rule: Rule, text: str, given: dict[str, Any]) -> bool:
    """A rule whose mapping lacks a value, or holds one of another type, cannot be followed."""
    try:
        return bool(text.strip()) and rule(text, given)
    except (KeyError, TypeError, ValueError, AttributeError):
        return False


def _compare(count: int, relation: str | None, wanted: int) -> bool:
    return count < wanted if relation == "less than" else count > wanted if relation == "more than" else count >= wanted


def count_words(text: str) -> int:
    return len(units(text)) if is_dense(text) else len(_WORD.findall(text))


def count_sentences(text: str) -> int:
    """Stretches that end in a full stop, a mark of question or exclamation, or the end of a line of prose."""
    count = 0
    for paragraph in regex.split(r"\n\s*\n", text.strip()):
        start = 0
        for match in _SENTENCE_END.finditer(paragraph):
            if not _ABBREVIATION.search(paragraph[start : match.end()]):
                count += bool(_WORD.search(paragraph, start, match.end()))
                start = match.end()
        count += bool(_WORD.search(paragraph, start))
    return count


def _found(text: str, word: str) -> int:
    return len(regex.findall(regex.escape(word), text, flags=regex.I))


def _forbidden(text: str, given: dict[str, Any]) -> bool:
    for word in given["forbidden_words"]:
        edge = "" if is_dense(word) else r"\b"
        if regex.search(f"{edge}{regex.escape(word)}{edge}", text, flags=regex.I):
            return False
    return True


def _paragraphs(text: str, given: dict[str, Any]) -> bool:
    """Paragraphs are parted by ***; a blank one is pardoned at the ends only."""
    parts = regex.split(r"\s?\*\*\*\s?", text)
    inner = parts[1:-1] if len(parts) > 1 else []
    return all(part.strip() for part in inner) and sum(bool(part.strip()) for part in parts) == int(given["num_paragraphs"])


def _first_word(text: str, given: dict[str, Any]) -> bool:
    paragraphs = regex.split(r"\n\n", text)
    count = sum(bool(part.strip()) for part in paragraphs)
    place = given["nth_paragraph"]
    if place > count or not paragraphs[place - 1].strip():
        return False
    word = paragraphs[place - 1].split()[0].lstrip("'\"")
    first = regex.split(r"[.,?!'\"]", word)[0]
    return count == int(given["num_paragraphs"]) and first.lower() == str(given["first_word"]).lower()


def _postscript(text: str, given: dict[str, Any]) -> bool:
    marker = given["postscript_marker"]
    known = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}
    return regex.search(known.get(marker, regex.escape(marker.lower())), text.lower()) is not None


def _bullets(text: str, given: dict[str, Any]) -> bool:
    found = regex.findall(r"^\s*\*[^\*].*$", text, flags=regex.M) + regex.findall(r"^\s*-.*$", text, flags=regex.M)
    return len(found) == int(given["num_bullets"])


def _highlights(text: str, given: dict[str, Any]) -> bool:
    single = [part for part in regex.findall(r"\*[^\n\*]*\*", text) if part.strip("*").strip()]
    double = [part for part in regex.findall(r"\*\*[^\n\*]*\*\*", text) if part.removeprefix("**").removesuffix("**").strip()]
    return len(single) + len(double) >= int(given["num_highlights"])


def _sections(text: str, given: dict[str, Any]) -> bool:
    splitter = given.get("section_spliter") or given["section_splitter"]  # spelt so in the published data
    return len(regex.split(rf"\s?{regex.escape(splitter)}\s?\d+\s?", text)) - 1 >= int(given["num_sections"])


def _json_only(text: str, given: dict[str, Any]) -> bool:
    try:
        json.loads(_JSON_FENCE.sub("", text.strip()))
    except (ValueError, RecursionError):
        return False
    return True


def _title(text: str, given: dict[str, Any]) -> bool:
    return any(part.lstrip("<").rstrip(">").strip() for part in regex.findall(r"<<[^\n]+>>", text))


def _two_responses(text: str, given: dict[str, Any]) -> bool:
    parts = text.split("******")
    if not all(part.strip() for part in parts[1:-1]):
        return False
    answers = [part.strip() for part in parts if part.strip()]
    return len(answers) == 2 and answers[0] != answers[1]


def _in_language(text: str, wanted: str) -> bool:
    return language_of(text) in ("und", _code(wanted))


def _code(language: str) -> str:
    return language.split("-")[0].lower()


def _capital_words(text: str, given: dict[str, Any]) -> bool:
    count = sum(token.isupper() for token in _TOKEN.findall(text))
    return _compare(count, given.get("capital_relation"), given["capital_frequency"])


RULES: dict[str, Rule] = {
    "keywords:existence": lambda text, g: all(_found(text, word) for word in g["keywords"]),
    "keywords:frequency": lambda text, g: _compare(_found(text, g["keyword"]), g.get("relation"), g["frequency"]),
    "keywords:forbidden_words": _forbidden,
    "keywords:letter_frequency": lambda text, g: _compare(
        Counter(text.lower())[g["letter"].lower()], g.get("let_relation"), g["let_frequency"]
    ),
    "language:response_language": lambda text, g: _in_language(text, g["language"]),
    "length_constraints:number_sentences": lambda text, g: _compare(count_sentences(text), g.get("relation"), g["num_sentences"]),
    "length_constraints:number_paragraphs": _paragraphs,
    "length_constraints:number_words": lambda text, g: _compare(count_words(text), g.get("relation"), g["num_words"]),
    "length_constraints:nth_paragraph_first_word": _first_word,
    "detectable_content:number_placeholders": lambda text, g: len(regex.findall(r"\[.*?\]", text)) >= g["num_placeholders"],
    "detectable_content:postscript": _postscript,
    "detectable_format:number_bullet_lists": _bullets,
    "detectable_format:constrained_response": lambda text, g: any(f"My answer is {word}." in text for word in ("yes", "no", "maybe")),
    "detectable_format:number_highlighted_sections": _highlights,
    "detectable_format:multiple_sections": _sections,
    "detectable_format:json_format": _json_only,
    "detectable_format:title": _title,
    "combination:two_responses": _two_responses,
    "combination:repeat_prompt": lambda text, g: text.strip().lower().startswith(g["prompt_to_repeat"].strip().lower()),
    "startend:end_checker": lambda text, g: text.strip().strip('"').lower().endswith(g["end_phrase"].strip().lower()),
    "startend:quotation": lambda text, g: len(text.strip()) > 1 and text.strip()[0] == text.strip()[-1] == '"',
    "change_case:capital_word_frequency": _capital_words,
    "change_case:english_capital": lambda text, g: text.isupper() and _in_language(text, "en"),
    "change_case:english_lowercase": lambda text, g: text.islower() and _in_language(text, "en"),
    "punctuation:no_comma": lambda text, g: "," not in text and "，" not in text,
}
