"""Input files as chunks of raw records, one function per format. Cutting is cheap and goes on in order; parsing a chunk
needs nothing but the chunk, so that other processes can do it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.core.params import DataParams
from pipeline.tables import arrow_values, csv_text, json_text, parquet
from pipeline.tables.fields import parse_path
from pipeline.tables.json_document import Cutter, elements, members
from pipeline.tables.lines import each_line, split_lines, too_large, whole_lines
from pipeline.tables.records import CHUNK_BYTES, Bad, BadRow, Chunk, Damaged, Record
from pipeline.tables.streams import read_head, utf8_blocks

LONG_LINE_BYTES = 16 * 1024 * 1024  # how far a first line is followed to tell lines from a document
Reader = Callable[[Path, DataParams], Iterator[Chunk]]


def read_lines(file: Path, data: DataParams) -> Iterator[Chunk]:
    """JSON Lines, an object per line; blank lines are no records."""
    for number, block in whole_lines(utf8_blocks(file, data.encoding), data.max_row_bytes):
        if isinstance(block, Bad):
            yield Chunk("records", number, [Record(number, block)])
        else:
            yield Chunk("lines", number, block)


def read_json(file: Path, data: DataParams) -> Iterator[Chunk]:
    """One JSON document: an array of rows, a single row, or rows at the path data.records."""
    if data.records:
        yield from _packed(_nested(file, data, data.records))
        return
    cutter = Cutter(utf8_blocks(file, data.encoding), data.max_row_bytes)
    if cutter.peek() == ord(b"["):
        yield from _packed(elements(cutter))
    elif cutter.peek() is not None:
        yield from _packed(iter([cutter.value()]))
    cutter.end()


def read_csv(file: Path, data: DataParams, delimiter: str) -> Iterator[Chunk]:
    """CSV or TSV; the first record names the columns unless data.header is false."""
    dialect = csv_text.Dialect(data.delimiter or delimiter, data.quoting, loose=delimiter == "\t")
    lines = each_line(whole_lines(utf8_blocks(file, data.encoding), data.max_row_bytes), data.max_row_bytes)
    found = csv_text.records(lines, dialect, data.max_row_bytes)
    names: list[str] | None = None
    records: list[Record] = []
    size = 0
    for number, fields in found:
        if names is None:
            names = _column_names(fields, data.header)
            if data.header:
                continue
        record = Record(number, _named(fields, names))
        records.append(record)
        size += sum(map(len, fields)) if isinstance(fields, list) else 0
        if size > CHUNK_BYTES or len(records) >= 16_384:
            yield Chunk("records", records[0].number, records)
            records, size = [], 0
    if records:
        yield Chunk("records", records[0].number, records)


def read_parquet(file: Path, data: DataParams) -> Iterator[Chunk]:
    """Parquet of any schema; the row number counts from 1."""
    number = 1
    for batch in parquet.batches(file):
        if batch.num_rows == 1 and (size := int(parquet.row_bytes(batch)[0])) > data.max_row_bytes:
            yield Chunk("records", number, [Record(number, too_large(size, data.max_row_bytes))])
        else:
            yield Chunk("batch", number, batch)
        number += batch.num_rows


READERS: dict[str, Reader] = {
    "jsonl": read_lines,
    "json": read_json,
    "csv": partial(read_csv, delimiter=","),
    "tsv": partial(read_csv, delimiter="\t"),
    "parquet": read_parquet,
    "openai-batch": read_lines,
}


def parse_lines(chunk: Chunk, data: DataParams) -> Iterator[Record]:
    for number, line in split_lines(chunk.first, chunk.data, data.max_row_bytes):
        if isinstance(line, Bad):
            yield Record(number, line)
        elif line and not line.isspace():
            yield _parsed(number, line)


def parse_elements(chunk: Chunk, data: DataParams) -> Iterator[Record]:
    for number, item in enumerate(chunk.data, chunk.first):
        yield Record(number, item) if isinstance(item, Bad) else _parsed(number, item)


def parse_records(chunk: Chunk, data: DataParams) -> Iterator[Record]:
    yield from chunk.data


def parse_batch(chunk: Chunk, data: DataParams) -> Iterator[Record]:
    yield from map(Record, range(chunk.first, chunk.first + chunk.data.num_rows), arrow_values.rows(chunk.data))


PARSERS: dict[str, Callable[[Chunk, DataParams], Iterator[Record]]] = {
    "lines": parse_lines,
    "elements": parse_elements,
    "records": parse_records,
    "batch": parse_batch,
}


def detect_format(file: Path, nested: bool = False) -> str:
    """Format of a file by its content first and its name second; nested: data.records is set, so JSON is a document.

    Raises Damaged when neither says it.
    """
    head = read_head(file)
    name = file.name.lower()
    for packed in (".gz", ".zst", ".bz2"):
        name = name.removesuffix(packed)
    if head.startswith(b"PAR1"):
        return "parquet"
    table = next((kind for kind in ("csv", "tsv") if name.endswith(f".{kind}")), None)
    if b"\n" not in head:
        head = read_head(file, LONG_LINE_BYTES)
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip(b" \t\r\n")
    if text[:1] in (b"[", b"{") and (table is None or _value(text.split(b"\n", 1)[0]) is not None):
        return "json" if nested else _lines_or_document(text, name)
    if table:
        return table
    if name.endswith((".jsonl", ".ndjson")):
        return "jsonl"
    if name.endswith(".json"):
        return "json"
    if name.endswith(".parquet"):
        raise Damaged("it is named .parquet but does not start like one (cut, or a pointer file?)")
    raise Damaged("neither content nor name says what it is; name the format in data.format (jsonl, json, csv, tsv, parquet)")


def _lines_or_document(text: bytes, name: str) -> str:
    """JSON Lines when some line is a whole object, or the first of several lines a whole value; else one document."""
    first, *rest = text.split(b"\n")[:100]
    value = _value(first)
    if isinstance(value, dict) or (first[:1] == b"{" and any(line[:1] == b"{" and isinstance(_value(line), dict) for line in rest)):
        return "jsonl"
    if value is not None:
        return "jsonl" if any(line.strip() for line in rest) else "json"
    spread = first.strip() in (b"{", b"[") or first.rstrip().endswith((b",", b"[", b"{")) or text[:1] == b"["
    return "json" if spread or not name.endswith((".jsonl", ".ndjson")) else "jsonl"


def _value(line: bytes) -> Any:
    """The JSON value that fills the line, None where there is none."""
    try:
        return json_text.parse(line)
    except BadRow:
        return None


def _parsed(number: int, data: bytes) -> Record:
    try:
        return Record(number, json_text.parse(data))
    except BadRow as error:
        return Record(number, error.bad)


def _packed(items: Iterable[bytes | Bad]) -> Iterator[Chunk]:
    """Elements in chunks of about CHUNK_BYTES, numbered from 1; what came before damage is handed on first."""
    held: list[bytes | Bad] = []
    first, size = 1, 0
    try:
        for item in items:
            held.append(item)
            size += len(item) if isinstance(item, bytes) else 0
            if size >= CHUNK_BYTES:
                yield Chunk("elements", first, held)
                first, held, size = first + len(held), [], 0
    except Damaged:
        if held:
            yield Chunk("elements", first, held)
        raise
    if held:
        yield Chunk("elements", first, held)


def _nested(file: Path, data: DataParams, path: str) -> Iterator[bytes | Bad]:
    """Rows of a nested document, each with the fields of all its parents. Streams over the outermost list."""
    steps = list(parse_path(path))
    if None not in steps:
        raise Damaged(f"data.records {path!r} names no list; write it like data[].items[]")
    cut = steps.index(None)
    keys, inner = [str(step) for step in steps[:cut]], steps[cut + 1 :]
    parents: dict[str, Any] = {}
    if keys:
        for _ in _walk_document(Cutter(utf8_blocks(file, data.encoding), data.max_row_bytes), keys, parents):
            pass
    cutter = Cutter(utf8_blocks(file, data.encoding), data.max_row_bytes)
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
    if isinstance(item, Bad):
        yield item
        return
    try:
        for row in _rows_below(json_text.parse(item), parents, steps):
            yield json_text.dump(row).encode()
    except BadRow as error:
        yield error.bad


def _rows_below(value: Any, parents: dict[str, Any], steps: list[Any]) -> Iterator[Any]:
    if not isinstance(value, dict):
        if parents or steps:
            raise BadRow("not_an_object", f"data.records leads to a {type(value).__name__}, not to an object")
        yield value
        return
    if not steps:
        yield {**parents, **value}
        return
    key, rest = steps[0], steps[1:]
    items = value.get(key)
    if rest[:1] == [None]:
        rest = rest[1:]
        if not isinstance(items, list):
            raise BadRow("no_records", f"the field {key!r} that data.records names is missing or no list")
    else:
        items = [items]
    outer = {**parents, **{name: field for name, field in value.items() if name != key}}
    for child in items:
        yield from _rows_below(child, outer, rest)


def _column_names(fields: list[str] | Bad, header: bool) -> list[str]:
    if isinstance(fields, Bad):
        raise Damaged(f"its first record cannot be read: {fields.detail}")
    if not header:
        return [f"column_{place}" for place in range(1, len(fields) + 1)]
    twice = sorted({name for name in fields if fields.count(name) > 1})
    if twice:
        raise Damaged(f"its header names column {twice[0]!r} twice; set data.header: false if the first record is no header")
    return fields


def _named(fields: list[str] | Bad, names: list[str]) -> dict[str, str] | Bad:
    if isinstance(fields, Bad):
        return fields
    if len(fields) != len(names):
        return Bad("column_count", f"{len(fields)} fields, but the first record has {len(names)}")
    return dict(zip(names, fields))
