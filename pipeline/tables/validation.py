"""Which fields of a record mean what, and whether it can be a row. A record ends as a valid row or as a reject."""

from __future__ import annotations

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
from pipeline.tables import json_text
from pipeline.tables.fields import MISSING, getter, is_plain
from pipeline.tables.json_text import Number, dump
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
        self._id = self._taker(id_field, "id_field")
        self._text = self._taker(data.text_field, "text_field")
        self._messages = self._taker(messages_field, "messages_field")
        self._reference = self._taker(data.reference_field, "reference_field")
        self._completion = self._taker(data.completion_field, "completion_field") if data.completion_field else None

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
                row, overrides = self._as_row(value)
                names[tuple(row)] += 1
                row_id = self._row_id(row, number)
                columns = self._columns(row, overrides)
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

    def _as_row(self, value: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """The record as an object, and the generation values it sets."""
        if isinstance(value, Bad):
            raise BadRow(*value)
        if isinstance(value, str) and is_plain(self._data.text_field):
            value = {self._data.text_field: value}
        if not isinstance(value, dict):
            raise BadRow("not_an_object", f"a row must be an object with fields, found {_kind(value)}")
        if self._openai:
            return unpack_request(value)
        return value, {name: value.pop(name) for name in self._data.overrides if name in value}

    def _row_id(self, row: dict[str, Any], number: int) -> str:
        value = self._id(row)
        if value is MISSING or value is None or value == "":
            if self._openai:
                raise BadRow("missing_id", "an OpenAI-batch line needs a custom_id")
            return f"{self._source}:{number}"
        if isinstance(value, bool) or not isinstance(value, str | int | float | Number):
            text = _scalar_text(value)
            if text is None:
                raise BadRow("bad_id", f"an id must be text or a number, found {_kind(value)}")
            return text
        return value if isinstance(value, str) else str(value)

    def _columns(self, row: dict[str, Any], overrides: dict[str, Any]) -> tuple[str | None, ...]:
        """text, messages, completion, reference, meta, overrides."""
        messages = self._messages(row)
        text = completion = None
        chat = None if messages is MISSING or messages is None or messages == "" else _messages_json(messages, self._textual)
        if self._completion is not None:
            completion = _completion(self._completion(row), self._data.completion_field or "")
        if chat is None:
            text = self._text_of(row, needed=self._completion is None)
        reference = reference_json(self._reference(row))
        settings = dump(check_overrides(overrides, self._textual)) if overrides else "{}"
        return text, chat, completion, reference, dump(row) if row else "{}", settings

    def _text_of(self, row: dict[str, Any], needed: bool) -> str | None:
        value = self._text(row)
        if isinstance(value, str):
            text = value
        elif value is MISSING or value is None:
            if not needed:
                return None
            if self._openai:
                raise BadRow("missing_messages", "body.messages is missing or null")
            raise BadRow("missing_text", _missing(self._data.text_field, row, value is None, document=self._format == "json"))
        else:
            text = _as_text(value)
        if needed and not text.strip():
            raise BadRow("empty_text", f"field {self._data.text_field!r} is empty or blank")
        return text

    def _taker(self, path: str, role: str) -> Callable[[dict[str, Any]], Any]:
        """Takes a field out of a row; what lies deeper than the top stays in meta. Control rows may use the standard name."""
        standard = STANDARD.get(role) if self._control else None
        if not is_plain(path):
            get = getter(path)
            return get if standard is None else lambda row: row.pop(standard, MISSING) if (v := get(row)) is MISSING else v
        if standard is None or standard == path:
            return lambda row: row.pop(path, MISSING)
        return lambda row: row.pop(path) if path in row else row.pop(standard, MISSING)

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


def _messages_json(value: Any, textual: bool) -> str:
    if isinstance(value, str):
        value = json_text.parse(value.encode())
    if not isinstance(value, list) or not value:
        raise BadRow("bad_messages", f"messages must be a list of turns, found {_kind(value)}")
    turns = [_turn(turn, place) for place, turn in enumerate(value)]
    if not any(turn["role"] != "system" and turn["content"].strip() for turn in turns):
        raise BadRow("empty_text", "no turn beside the system's holds any text")
    return dump(turns)


def _turn(turn: Any, place: int) -> dict[str, str]:
    if not isinstance(turn, dict) or not isinstance(turn.get("role"), str) or not turn["role"]:
        raise BadRow("bad_messages", f"messages[{place}] must be an object with role and content")
    extra = sorted(key for key, item in turn.items() if key not in ("role", "content", "name") and item not in (None, [], ""))
    if extra:
        raise BadRow("unsupported_content", f"messages[{place}].{extra[0]} is not supported")
    content = turn.get("content")
    if isinstance(content, list):
        content = "".join(_part(part, place) for part in content)
    if not isinstance(content, str):
        raise BadRow("bad_messages", f"messages[{place}].content must be text, found {_kind(content)}")
    return {"role": turn["role"], "content": content}


def _part(part: Any, place: int) -> str:
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        text: str = part["text"]
        return text
    kind = part.get("type") if isinstance(part, dict) else _kind(part)
    raise BadRow("unsupported_content", f"messages[{place}].content holds a part of type {kind!r}; only text is supported")


def _completion(value: Any, path: str) -> str:
    if value is MISSING or value is None:
        raise BadRow("missing_completion", f'field {path!r} (data.completion_field) is missing or null; an empty answer is ""')
    return value if isinstance(value, str) else _as_text(value)


def _as_text(value: Any) -> str:
    """Text of a field that is no string: a number as written, a list of texts joined by blanks."""
    if isinstance(value, list) and value:
        return " ".join(_as_text(item) for item in value)
    if isinstance(value, str):
        return value
    text = _scalar_text(value)
    if text is None:
        raise BadRow("text_not_text", f"the text field holds {_kind(value)}")
    return text


def _scalar_text(value: Any) -> str | None:
    """A number, decimal, date or time as text; None for anything that is no plain value."""
    if isinstance(value, bytes):
        raise BadRow("invalid_utf8", "the field holds bytes that are no valid UTF-8")
    if value is None or isinstance(value, bool | list | dict):
        return None
    return str(value)


def _missing(path: str, row: dict[str, Any], null: bool, document: bool) -> str:
    if null:
        return f"field {path!r} (data.text_field) is null"
    if "custom_id" in row and "body" in row:
        return "this looks like an OpenAI-batch line; set data.format: openai-batch"
    known = f"its other fields: {', '.join(map(repr, list(row)[:12]))}" if row else "nor any other but its id"
    lists = [name for name, value in row.items() if isinstance(value, list) and value and isinstance(value[0], dict)]
    hint = f"; if its rows are in {lists[0]!r}, set data.records: {lists[0]}[]" if lists and document else ""
    return f"no field {path!r} (data.text_field), {known}{hint}"


def _kind(value: Any) -> str:
    if value is MISSING or value is None:
        return "nothing"
    names = {bool: "true or false", int: "a number", float: "a number", Number: "a number", str: "text", list: "a list", dict: "an object"}
    return names.get(type(value), type(value).__name__)


def _digest(row_id: str, columns: tuple[str | None, ...]) -> bytes:
    return blake2b(row_id.encode(), digest_size=16).digest() + blake2b(orjson.dumps(columns), digest_size=16).digest()
