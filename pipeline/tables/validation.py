"""Which fields of a record mean what, and whether it can be a row. A record ends as a valid row or as a reject."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple

import orjson
import pyarrow as pa

from pipeline.core import schemas
from pipeline.core.params import DataParams
from pipeline.tables.cells import as_text, completion_text, kind_of, reference_json, scalar_text
from pipeline.tables.fields import MISSING, getter, is_plain
from pipeline.tables.json_text import dump
from pipeline.tables.messages import messages_json
from pipeline.tables.openai_batch import unpack_request
from pipeline.tables.overrides import check_overrides
from pipeline.tables.readers import PARSERS
from pipeline.tables.records import Bad, BadRow, Chunk, Record

STANDARD = {"id_field": "id", "text_field": "text", "messages_field": "messages", "reference_field": "reference"}
VALID = pa.schema([schemas.VALIDATED.field(name) for name in schemas.VALIDATED.names if name != "ordinal"])


@dataclass
class Checked:
    """What became of one chunk: valid rows and rejects, each with its place among the chunk's records.

    digests: 32 bytes a valid row, 16 of the id and 16 of everything else it holds.
    """

    records: int = 0
    places: list[int] = field(default_factory=list)
    rows: pa.Table = field(default_factory=lambda: VALID.empty_table())
    digests: bytes = b""
    rejects: list[tuple[int, int, str | None, Bad]] = field(default_factory=list)  # place, number, id, fault
    fields: Counter[str] = field(default_factory=Counter)


class FileSpec(NamedTuple):
    """What a file's name, place and format mean for its rows. format: a key of READERS."""

    source: str
    control: bool = False
    format: str = "jsonl"


def check_chunk(chunk: Chunk, spec: FileSpec, data: DataParams) -> Checked:
    """Parse and check one chunk; needs nothing else, so that any process can do it."""
    return _validator(data, spec).check(PARSERS[chunk.kind](chunk, data))


class Validator:
    """Checks the records of one file."""

    def __init__(self, data: DataParams, spec: FileSpec) -> None:
        self._data = data
        self._source, self._control, self._format = spec
        self._textual = spec.format in ("csv", "tsv")  # numbers come as text
        self._openai = openai = spec.format == "openai-batch"
        id_field, messages_field = ("custom_id", "messages") if openai else (data.id_field, data.messages_field)
        self._text_name = data.text_field
        self._taken: list[str] = []
        self._id = self._getter(id_field, "id_field")
        self._text = self._getter(data.text_field, "text_field")
        self._messages = self._getter(messages_field, "messages_field")
        self._reference = self._getter(data.reference_field, "reference_field")
        self._completion = self._getter(data.completion_field, "completion_field") if data.completion_field else None

    def check(self, records: Iterable[Record]) -> Checked:
        """All records of a chunk, in order."""
        done = Checked()
        kept: list[tuple[Any, ...]] = []
        digests = []
        names: Counter[tuple[str, ...]] = Counter()
        for place, (number, value) in enumerate(records):
            done.records += 1
            row_id: str | None = None
            try:
                row = self._as_object(value)
                names[tuple(row)] += 1
                row_id = self._row_id(row, number)
                columns = self._columns(*self._with_overrides(row))
            except BadRow as error:
                done.rejects.append((place, number, row_id, error.bad))
                continue
            done.places.append(place)
            kept.append((row_id, number, *columns))
            digests.append(_digest(row_id, columns))
        done.rows = self._table(kept)
        done.digests = b"".join(digests)
        for group, count in names.items():
            done.fields.update(dict.fromkeys(group, count))
        return done

    def _as_object(self, value: Any) -> dict[str, Any]:
        """The record as an object; a bare text is a row that has only this."""
        if isinstance(value, Bad):
            raise BadRow(*value)
        if isinstance(value, str) and is_plain(self._data.text_field):
            value = {self._data.text_field: value}
        if not isinstance(value, dict):
            raise BadRow("not_an_object", f"a row must be an object with fields, found {kind_of(value)}")
        return value

    def _with_overrides(self, row: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The row, and the generation values it sets."""
        return unpack_request(row) if self._openai else (row, {name: row.pop(name) for name in self._data.overrides if name in row})

    def _row_id(self, row: dict[str, Any], number: int) -> str:
        value = self._id(row)
        if value is MISSING or value is None or value == "":
            if self._openai:
                raise BadRow("missing_id", "an OpenAI-batch line needs a custom_id")
            return f"{self._source}:{number}"
        text = value if isinstance(value, str) else scalar_text(value)
        if text is None:
            raise BadRow("bad_id", f"an id must be text or a number, found {kind_of(value)}")
        return text

    def _columns(self, row: dict[str, Any], overrides: dict[str, Any]) -> tuple[str | None, ...]:
        """text, messages, completion, reference, meta, overrides."""
        messages = self._messages(row)
        text = completion = None
        chat = None if messages is MISSING or messages is None or messages == "" else messages_json(messages)
        if self._completion is not None:
            completion = completion_text(self._completion(row), self._data.completion_field or "")
        if chat is None:
            text = self._text_of(row, needed=self._completion is None)
        reference = reference_json(self._reference(row))
        settings = dump(check_overrides(overrides, self._textual)) if overrides else "{}"
        return text, chat, completion, reference, self._meta(row, messages_used=chat is not None), settings

    def _text_of(self, row: dict[str, Any], needed: bool) -> str | None:
        value = self._text(row)
        if isinstance(value, str):
            text = value
        elif value is MISSING or value is None:
            if not needed:
                return None
            if self._openai:
                raise BadRow("missing_messages", "body.messages is missing or null")
            raise BadRow("missing_text", _missing(self._data.text_field, row, value is None, self._format))
        else:
            text = as_text(value)
        if needed and not text.strip():
            raise BadRow("empty_text", f"field {self._data.text_field!r} is empty or blank")
        return text

    def _getter(self, path: str, role: str) -> Callable[[dict[str, Any]], Any]:
        """Finds a field. Control rows may use the standard name instead."""
        get = getter(path)
        self._taken += [path] if is_plain(path) else []
        standard = STANDARD.get(role)
        if not self._control or standard is None or standard == path:
            return get
        self._taken.append(standard)
        return lambda row: row.get(standard, MISSING) if (value := get(row)) is MISSING else value

    def _meta(self, row: dict[str, Any], messages_used: bool) -> str:
        """Every field that no other column holds whole; what lies deeper than the top stays."""
        for name in self._taken:
            if name != self._text_name or not messages_used:
                row.pop(name, None)
        return dump(row) if row else "{}"

    def _table(self, kept: list[tuple[Any, ...]]) -> pa.Table:
        ids, numbers, *columns = zip(*kept) if kept else [()] * 8
        count = len(ids)
        arrays = [
            pa.array(ids, pa.string()),
            pa.repeat(self._source, count),
            pa.array(numbers, pa.int64()),
            pa.repeat(self._control, count),
        ]
        arrays += [pa.array(column, pa.string()) for column in columns]
        return pa.Table.from_arrays(arrays, schema=VALID)


@lru_cache(maxsize=4)
def _validator(data: DataParams, spec: FileSpec) -> Validator:
    return Validator(data, spec)


def _missing(path: str, row: dict[str, Any], null: bool, kind: str) -> str:
    if null:
        return f"field {path!r} (data.text_field) is null"
    if "custom_id" in row and "body" in row:
        return "this looks like an OpenAI-batch line; set data.format: openai-batch"
    known = f"its other fields: {', '.join(map(repr, list(row)[:12]))}" if row else "nor any other but its id"
    lists = [name for name, value in row.items() if isinstance(value, list) and value and isinstance(value[0], dict)]
    hint = f"; if its rows are in {lists[0]!r}, set data.records: {lists[0]}[]" if lists and kind == "json" else ""
    if kind in ("csv", "tsv") and len(row) == 1 and (others := [mark for mark in ";\t|," if mark in next(iter(row))]):
        hint = f"; set data.delimiter: {json.dumps(others[0])}"
    return f"no field {path!r} (data.text_field), {known}{hint}"


def _digest(row_id: str, columns: tuple[str | None, ...]) -> bytes:
    return blake2b(row_id.encode(), digest_size=16).digest() + blake2b(orjson.dumps(columns), digest_size=16).digest()
