"""Is an answer JSON? Five classes, from RFC 8259 without excuse to not at all; nothing is repaired without being called so.

strict    the whole answer is one JSON object or array: no NaN, no duplicate key, nothing before or after
fenced    strict JSON inside one Markdown code fence, with or without words around it
repaired  an object could be recovered: prose around it, trailing comma, NaN, duplicate key, single quotes, missing bracket
cut       it starts as JSON and the answer hit the token limit before the end
not       anything else, a bare scalar and two different objects in a row included
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, Literal

import json_repair
import regex

JsonClass = Literal["strict", "fenced", "repaired", "cut", "not"]
MAX_REPAIR_CHARS = 200_000

_FENCE = regex.compile(r"^[ \t]{0,3}(?P<mark>`{3,}|~{3,})[^\n`]*\n(?P<body>.*?)\n?^[ \t]{0,3}(?P=mark)[`~]*[ \t]*$", regex.M | regex.S)
_OPEN_FENCE = regex.compile(r"\A\s*(?:`{3,}|~{3,})[^\n`]*\n")
_STARTS = regex.compile(r"\A\s*(?:\{\s*(?:[\"'}]|[\w$]+\s*:|\Z)|\[\s*(?:[\[\]{\"'\-\d]|true|false|null|\Z))")
_OBJECT_IN_PROSE = regex.compile(r"\{\s*(?:\"[^\"\n]*\"|'[^'\n]*'|[\w$]+)\s*:")


@dataclass(frozen=True)
class Parsed:
    """What an answer is as JSON; value is None for cut (unless its start could be closed) and not."""

    kind: JsonClass
    value: Any = None


class _Refused(ValueError):
    """Valid for a lax parser, not for RFC 8259."""


def parse_json(text: str, finish_reason: str | None = None) -> Parsed:
    """Classify one answer. finish_reason `length` makes an unfinished document `cut`, else it is `repaired`."""
    try:
        return Parsed("strict", strict(text))
    except ValueError:
        pass
    fences = list(_FENCE.finditer(text))
    for match in fences:
        try:
            return Parsed("fenced", strict(match["body"]))
        except ValueError:
            continue
    body = fences[0]["body"] if fences else _OPEN_FENCE.sub("", text)
    return _repair(body, finish_reason)


def strict(text: str) -> Any:
    """One JSON object or array by RFC 8259. Raises ValueError for anything else, scalars included."""
    if not _STARTS.match(text):
        raise _Refused("no object or array")
    try:
        return json.loads(text, object_pairs_hook=_no_duplicates, parse_constant=_no_constant, parse_float=_finite)
    except RecursionError:
        raise _Refused("nested too deep") from None


def canonical(value: Any) -> str:
    """Sorted keys, no blanks: equal values give equal texts."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def spelled(value: Any) -> str:
    """Like `canonical` but with blanks, so that keys and values are words of their own."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def spelled_text(text: str) -> str:
    """A text that is strict JSON in the spelling of `spelled`, any other text as it is."""
    try:
        return spelled(strict(text))
    except ValueError:
        return text


def lookup(value: Any, path: str) -> Any:
    """Value at a dotted path, list items by number; None where it leads nowhere."""
    for key in path.split("."):
        if isinstance(value, dict):
            value = value.get(key)
        elif isinstance(value, list) and key.lstrip("-").isdecimal() and -len(value) <= int(key) < len(value):
            value = value[int(key)]
        else:
            return None
    return value


def as_text(value: Any) -> str | None:
    """A JSON value as an answer text: strings bare, the rest spelled as JSON, null as None."""
    return value if isinstance(value, str) or value is None else spelled(value)


def _repair(body: str, finish_reason: str | None) -> Parsed:
    starts = _STARTS.match(body) is not None
    found = None if starts else _OBJECT_IN_PROSE.search(body)
    if not (starts or found) or len(body) > MAX_REPAIR_CHARS:
        return Parsed("not")
    document = body.strip() if starts else body[found.start() :] if found else ""
    end, closed = _end_of_first(document)
    unfinished = not closed
    if closed and _another_value(document[:end], document[end:]):
        return Parsed("not")
    value = _lax(document[:end] if closed else document)
    if unfinished and finish_reason == "length":
        return Parsed("cut", value)
    return Parsed("repaired", value) if value is not None else Parsed("not")


def _lax(document: str) -> Any:
    """Best effort of json-repair; None unless it gives a filled object or list. NaN and infinities become null."""
    try:
        value = json.loads(document, parse_constant=lambda _: None, parse_float=_finite_or_none)
    except (ValueError, RecursionError):
        try:
            value = json_repair.loads(document, skip_json_loads=True)
            value = json.loads(json.dumps(value), parse_constant=lambda _: None, parse_float=_finite_or_none)
        except (ValueError, RecursionError, TypeError):
            return None
    return value if isinstance(value, dict | list) and (value or document.strip() in ("{}", "[]")) else None


def _end_of_first(document: str) -> tuple[int, bool]:
    """Where the first object or array closes, strings respected, and whether it does."""
    depth, quote, escaped = 0, "", False
    for index, c in enumerate(document):
        if quote:
            if escaped:
                escaped = False
            elif c == "\\":
                escaped = True
            elif c == quote:
                quote = ""
        elif c == '"':
            quote = c
        elif c in "{[":
            depth += 1
        elif c in "}]":
            depth -= 1
            if depth == 0:
                return index + 1, True
    return len(document), False


def _another_value(first: str, rest: str) -> bool:
    """Whether a second, different object follows: then nobody can say which one is the answer."""
    rest = rest.strip().lstrip(",;\n ")
    if not _STARTS.match(rest) or not rest.startswith(first[0]):
        return False
    end, closed = _end_of_first(rest)
    return not closed or rest[:end].split() != first.split()


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _Refused("duplicate key")
    return found


def _no_constant(name: str) -> Any:
    raise _Refused(f"{name} is no JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise _Refused(f"{text} is out of range")
    return value


def _finite_or_none(text: str) -> float | None:
    value = float(text)
    return None if math.isinf(value) else value
