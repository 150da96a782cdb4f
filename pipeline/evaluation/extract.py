"""What is taken out of an answer before it is scored. Extraction is apart from scoring: it never sees the reference.

An extractor is a function of the answer (reasoning split off) and its finish reason; it returns the part to be scored,
or None where there is none. In params it is a name (`last_number`), or a mapping of one name to its option
(`{regex: "Answer: (.*)"}`, `{json: result.total}`, `{after: "####"}`), or `by` a field of the row:
`{by: task, arithmetic: last_number, else: text}`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import regex

from pipeline.core.errors import ParamsError
from pipeline.evaluation import jsontext
from pipeline.evaluation.numbers import last_number, plain
from pipeline.evaluation.units import fold
from pipeline.tables.fields import MISSING, getter

Extractor = Callable[[str, str | None], str | None]
REGEX_TIMEOUT_S = 2.0

_THINK_OPEN = regex.compile(r"\A\s*<(think|thinking|reasoning)>")
_LETTER = r"(?<![A-Za-z])([A-H](?:\s*(?:[,、，/&和及与]|and\s)?\s*[A-H])*)(?![A-Za-z'’])"
_WRAP = r"[\(（\[【*\"“'_\s]*"
_CUE_EN = r"(?i:\b(?:answers?|choices?|options?|correct)(?:\s+(?:is|are|would\s+be|should\s+be))?\s*[:：]?\s*(?:(?:options?|choices?)\s+)?)"
_CUE_ZH = r"(?:答案|正确选项|正确的是|应选|故选|选择|选项|选)(?:是|为|应为|应该是|应该为|项)?\s*[:：]?"
_CHOICE_CUE = regex.compile(f"(?:{_CUE_EN}|{_CUE_ZH}){_WRAP}{_LETTER}")
_CHOICE_LINE = regex.compile(rf"^{_WRAP}{_LETTER}(?:[\)）\]】*\"”'_]*\s*(?:[.．、:：)）]|$))", flags=regex.M)
_CHOICE_ANY = regex.compile(r"(?<![A-Za-z'’])([B-H]|A(?!\s+[a-z]))(?![A-Za-z'’])")


def split_reasoning(text: str) -> tuple[str, str]:
    """(reasoning, answer): a leading <think> block split off. One that never ends leaves an empty answer."""
    opening = _THINK_OPEN.match(text)
    if opening is None:
        closing = text.find("</think>")  # templates that open the block in the prompt leave only its end
        return (text[:closing].strip(), text[closing + 8 :].lstrip()) if closing >= 0 and "<think>" not in text else ("", text)
    close = f"</{opening[1]}>"
    end = text.find(close, opening.end())
    if end < 0:
        return text[opening.end() :].strip(), ""
    return text[opening.end() : end].strip(), text[end + len(close) :].lstrip()


def build_extractor(spec: Any, where: str = "evaluate.extract") -> Callable[[Mapping[str, Any]], Extractor]:
    """A function from a row's fields to its extractor. Raises ParamsError for an unknown name or a wrong option."""
    if isinstance(spec, dict) and "by" in spec:
        field = spec["by"]
        cases = {str(value): _one(item, f"{where}.{value}") for value, item in spec.items() if value not in ("by", "else")}
        other = _one(spec.get("else", "text"), f"{where}.else")
        return lambda fields: cases.get(as_key(value_at(field, fields)), other)
    single = _one(spec, where)
    return lambda fields: single


def value_at(path: str, fields: Mapping[str, Any]) -> Any:
    """The field of a row at a dotted path, None where it has none.

    `meta.NAME` is the row's field NAME, whatever else is called so (`meta.language`), unless the row has a field `meta`.
    """
    found = _getter(path if "meta" in fields else path.removeprefix("meta."))(dict(fields))
    return None if found is MISSING else found


_getter = lru_cache(maxsize=256)(getter)


def as_key(value: Any) -> str:
    """A field's value as the text it has as a key in params: true, 3, news."""
    return value if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)


def wants_json(spec: Any, fields: Mapping[str, Any]) -> bool:
    """Whether the extractor chosen for a row is a JSON one: then a JSON answer is expected."""
    if isinstance(spec, dict) and "by" in spec:
        spec = spec.get(as_key(value_at(spec["by"], fields)), spec.get("else", "text"))
    return spec == "json" or (isinstance(spec, dict) and "json" in spec)


def _one(spec: Any, where: str) -> Extractor:
    name, option = (
        (spec, None) if isinstance(spec, str) else next(iter(spec.items())) if isinstance(spec, dict) and len(spec) == 1 else (None, None)
    )
    if name not in EXTRACTORS:
        raise ParamsError(f"{where}: {spec!r} is no extractor; known: {', '.join(EXTRACTORS)}, or by: FIELD with one per value")
    try:
        return EXTRACTORS[name](option)
    except (TypeError, ValueError, regex.error) as error:
        raise ParamsError(f"{where}.{name}: {error} (got {option!r})") from None


def _text(option: None) -> Extractor:
    return lambda text, finish: text.strip()


def _first_line(option: None) -> Extractor:
    return lambda text, finish: next((line.strip() for line in text.splitlines() if line.strip()), None)


def _last_line(option: None) -> Extractor:
    return lambda text, finish: next((line.strip() for line in reversed(text.splitlines()) if line.strip()), None)


def _last_number(option: None) -> Extractor:
    def take(text: str, finish: str | None) -> str | None:
        number = last_number(text)
        return None if number is None else plain(number.value)

    return take


def _choice(option: str | None) -> Extractor:
    allowed = set(option or "ABCDEFGH")

    def take(text: str, finish: str | None) -> str | None:
        letters = choice_letters(text)
        return "".join(letter for letter in letters if letter in allowed) or None

    return take


def _regex(option: str) -> Extractor:
    """The last match: its first group that took part, or all of it."""
    if not isinstance(option, str):
        raise ValueError("needs a pattern")
    pattern = regex.compile(option)

    def take(text: str, finish: str | None) -> str | None:
        try:
            found = list(pattern.finditer(text, timeout=REGEX_TIMEOUT_S))[-1:]
        except TimeoutError:
            return None
        return next((group for match in found for group in (*match.groups(), match.group()) if group is not None), None)

    return take


def _after(option: str) -> Extractor:
    if not isinstance(option, str) or not option:
        raise ValueError("needs the marker text")
    return lambda text, finish: text.rpartition(option)[2].strip() if option in text else None


def _json(option: str | None) -> Extractor:
    """The whole document as JSON with sorted keys, or one field of it as text."""

    def take(text: str, finish: str | None) -> str | None:
        value = jsontext.parse_json(text, finish).value
        if value is None:
            return None
        return jsontext.as_text(jsontext.lookup(value, option) if option else value)

    return take


def choice_letters(text: str) -> str:
    """The letters chosen, in alphabetical order: after a cue word, else heading a line, else the last that stands alone."""
    text = text if text.isascii() else "".join(fold(c).upper() if "Ａ" <= c <= "ｚ" else c for c in text)
    bare = regex.fullmatch(r"\s*([A-Ha-h])[\s.。)]*", text)
    if bare:
        return str(bare[1]).upper()
    found = _CHOICE_CUE.findall(text)[-1:] or _CHOICE_LINE.findall(text)[:1] or _CHOICE_ANY.findall(text)[-1:]
    return "".join(sorted(set(found[0]) & set("ABCDEFGH"))) if found else ""


EXTRACTORS: dict[str, Callable[[Any], Extractor]] = {
    "text": _text,
    "first_line": _first_line,
    "last_line": _last_line,
    "last_number": _last_number,
    "choice": _choice,
    "regex": _regex,
    "after": _after,
    "json": _json,
}
