"""Single values of a row as the text that tables hold."""

from __future__ import annotations

from typing import Any

from pipeline.tables.fields import MISSING
from pipeline.tables.json_text import Number, dump
from pipeline.tables.records import BadRow


def reference_json(value: Any) -> str | None:
    """References as a JSON array of texts; None when there is none. Empty text is no reference."""
    if isinstance(value, str):
        return dump([value]) if value else None
    if value is MISSING or value is None:
        return None
    items = value if isinstance(value, list) else [value]
    texts = [text for text in map(_reference_text, items) if text]
    return dump(texts) if texts else None


def _reference_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return str(value) if isinstance(value, Number) else dump(value)


def completion_text(value: Any, path: str) -> str:
    """An answer made elsewhere; empty text is one."""
    if value is MISSING or value is None:
        raise BadRow("missing_completion", f'field {path!r} (data.completion_field) is missing or null; an empty answer is ""')
    return value if isinstance(value, str) else as_text(value)


def as_text(value: Any) -> str:
    """Text of a field that is no string: a number as written, a list of texts joined by blanks."""
    if isinstance(value, list) and value:
        return " ".join(as_text(item) for item in value)
    if isinstance(value, str):
        return value
    text = scalar_text(value)
    if text is None:
        raise BadRow("text_not_text", f"the text field holds {kind_of(value)}")
    return text


def scalar_text(value: Any) -> str | None:
    """A number, decimal, date or time as text; None for anything that is no plain value."""
    if isinstance(value, bytes):
        raise BadRow("invalid_utf8", "the field holds bytes that are no valid UTF-8")
    if value is None or isinstance(value, bool | list | dict):
        return None
    return str(value)


def kind_of(value: Any) -> str:
    """What a value is, in a word or two for an error."""
    if value is MISSING or value is None:
        return "nothing"
    names = {bool: "true or false", int: "a number", float: "a number", Number: "a number", str: "text", list: "a list", dict: "an object"}
    return names.get(type(value), type(value).__name__)
