"""Rows of a nested JSON document at a path like data[].paragraphs[].qas[], each with the fields of all its parents."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pipeline.tables import json_text
from pipeline.tables.cells import kind_of
from pipeline.tables.fields import parse_path
from pipeline.tables.json_document import Cutter, elements, members
from pipeline.tables.records import Bad, BadRow, Damaged


def nested_rows(open_document: Callable[[], Cutter], path: str) -> Iterator[bytes | Bad]:
    """Rows as JSON, streaming over the outermost list. The document is read twice where fields stand beside that list."""
    steps = list(parse_path(path))
    if None not in steps:
        raise Damaged(f"data.records {path!r} names no list; write it like data[].items[]")
    cut = steps.index(None)
    keys, inner = [str(step) for step in steps[:cut]], steps[cut + 1 :]
    parents: dict[str, Any] = {}
    if keys:
        for _ in _walk_document(open_document(), keys, parents):
            pass
    cutter = open_document()
    for item in _walk_document(cutter, keys, {}):
        yield from _expanded(item, parents, inner)
    cutter.end()


def _walk_document(cutter: Cutter, keys: list[str], siblings: dict[str, Any]) -> Iterator[bytes | Bad]:
    """Elements of the list at `keys`; every other field met on the way goes into `siblings`."""
    if not keys:
        yield from elements(cutter)
        return
    seen = False
    for key in members(cutter):
        name = _strict(key)
        if name == keys[0] and not seen:
            seen = True
            yield from _walk_document(cutter, keys[1:], siblings)
            continue
        value = cutter.value()
        if isinstance(value, bytes):
            siblings[name] = _strict(value)
    if not seen:
        raise Damaged(f"it has no field {keys[0]!r}, which data.records names")


def _strict(value: bytes) -> Any:
    """A part of the document that belongs to no single row. Raises Damaged."""
    try:
        return json_text.parse(value)
    except BadRow as error:
        raise Damaged(f"outside its rows the document is faulty: {error}") from None


def _expanded(item: bytes | Bad, parents: dict[str, Any], steps: list[Any]) -> Iterator[bytes | Bad]:
    """The rows inside one element of the outermost list; a faulty one costs only itself."""
    if isinstance(item, Bad):
        yield item
        return
    try:
        value = json_text.parse(item)
    except BadRow as error:
        yield error.bad
        return
    for row in _rows_below(value, parents, steps):
        yield row if isinstance(row, Bad) else _dumped(row)


def _dumped(row: Any) -> bytes | Bad:
    try:
        return json_text.dump(row).encode()
    except BadRow as error:
        return error.bad


def _rows_below(value: Any, parents: dict[str, Any], steps: list[Any]) -> Iterator[Any]:
    if not isinstance(value, dict):
        wrong = Bad("not_an_object", f"data.records leads to {kind_of(value)}, not to an object")
        yield wrong if parents or steps else value
        return
    if not steps:
        yield {**parents, **value}
        return
    key, rest = steps[0], steps[1:]
    items = value.get(key)
    if rest[:1] == [None]:
        rest = rest[1:]
        if not isinstance(items, list):
            yield Bad("no_records", f"the field {key!r} that data.records names is missing or no list")
            return
    else:
        items = [items]
    outer = {**parents, **{name: field for name, field in value.items() if name != key}}
    for child in items:
        yield from _rows_below(child, outer, rest)
