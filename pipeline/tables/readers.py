"""Input files as chunks of raw records, one function per format. Cutting is cheap and goes on in order; parsing a chunk
needs nothing but the chunk, so that other processes can do it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TypeVar

from pipeline.core.params import DataParams
from pipeline.tables import arrow_values, csv_text, json_text, parquet
from pipeline.tables.json_document import Cutter, elements
from pipeline.tables.lines import at_most, each_line, split_lines, too_large, whole_lines
from pipeline.tables.nested import nested_rows
from pipeline.tables.records import CHUNK_BYTES, CHUNK_RECORDS, Bad, BadRow, Chunk, Damaged, Record
from pipeline.tables.streams import utf8_blocks

T = TypeVar("T")
Reader = Callable[[Path, DataParams], Iterator[Chunk]]


def read_lines(file: Path, data: DataParams) -> Iterator[Chunk]:
    """JSON Lines, an object per line; blank lines are no records."""
    for number, block in whole_lines(utf8_blocks(file, data.encoding), data.max_row_bytes):
        if isinstance(block, Bad):
            yield Chunk("records", number, [Record(number, block)])
        else:
            for first, part in at_most(number, block, CHUNK_RECORDS):
                yield Chunk("lines", first, part)


def read_json(file: Path, data: DataParams) -> Iterator[Chunk]:
    """One JSON document: an array of rows, a single row, or rows at the path data.records."""

    def open_document() -> Cutter:
        return Cutter(utf8_blocks(file, data.encoding), data.max_row_bytes)

    if data.records:
        yield from _elements(nested_rows(open_document, data.records))
        return
    cutter = open_document()
    if cutter.peek() == ord(b"["):
        yield from _elements(elements(cutter))
    elif cutter.peek() is not None:
        yield from _elements(iter([cutter.value()]))
    cutter.end()


def read_csv(file: Path, data: DataParams, delimiter: str) -> Iterator[Chunk]:
    """CSV or TSV; the first record names the columns unless data.header is false."""
    dialect = csv_text.Dialect(data.delimiter or delimiter, data.quoting, loose=delimiter == "\t")
    lines = each_line(whole_lines(utf8_blocks(file, data.encoding), data.max_row_bytes), data.max_row_bytes)
    found = csv_text.records(lines, dialect, data.max_row_bytes)
    head = next(found, None)
    if head is None:
        return
    names = _column_names(head.value, data.header)
    rows = found if data.header else chain([head], found)
    for group in _groups(rows, lambda record: sum(map(len, record.value)) if isinstance(record.value, list) else 0):
        yield Chunk("fields", group[0].number, (names, data.header, [tuple(record) for record in group]))


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


def parse_fields(chunk: Chunk, data: DataParams) -> Iterator[Record]:
    names, header, records = chunk.data
    for number, fields in records:
        yield Record(number, _named(fields, names, header))


def parse_records(chunk: Chunk, data: DataParams) -> Iterator[Record]:
    yield from chunk.data


def parse_batch(chunk: Chunk, data: DataParams) -> Iterator[Record]:
    yield from map(Record, range(chunk.first, chunk.first + chunk.data.num_rows), arrow_values.rows(chunk.data))


PARSERS: dict[str, Callable[[Chunk, DataParams], Iterator[Record]]] = {
    "lines": parse_lines,
    "elements": parse_elements,
    "fields": parse_fields,
    "records": parse_records,
    "batch": parse_batch,
}


def _parsed(number: int, data: bytes) -> Record:
    try:
        return Record(number, json_text.parse(data))
    except BadRow as error:
        return Record(number, error.bad)


def _elements(items: Iterable[bytes | Bad]) -> Iterator[Chunk]:
    """Elements of a document, numbered from 1."""
    first = 1
    for group in _groups(items, len):
        yield Chunk("elements", first, group)
        first += len(group)


def _groups(items: Iterable[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """Lists of about CHUNK_BYTES by `size`, at most CHUNK_RECORDS long; what came before damage is handed on first."""
    held: list[T] = []
    total = 0
    try:
        for item in items:
            held.append(item)
            total += size(item)
            if total >= CHUNK_BYTES or len(held) >= CHUNK_RECORDS:
                yield held
                held, total = [], 0
    except Damaged:
        if held:
            yield held
        raise
    if held:
        yield held


def _column_names(fields: list[str] | Bad, header: bool) -> list[str]:
    if isinstance(fields, Bad):
        raise Damaged(f"its first record cannot be read: {fields.detail}")
    if not header:
        return [f"column_{place}" for place in range(1, len(fields) + 1)]
    twice = sorted({name for name in fields if fields.count(name) > 1})
    if twice:
        raise Damaged(f"its header names column {twice[0]!r} twice; set data.header: false if the first record is no header")
    return fields


def _named(fields: list[str] | Bad, names: list[str], header: bool) -> dict[str, str] | Bad:
    if isinstance(fields, Bad):
        return fields
    if header and [fields[0].removeprefix("\ufeff"), *fields[1:]] == names:
        return Bad("repeated_header", "the header stands here again, as in files that were joined")
    if len(fields) != len(names):
        return Bad("column_count", f"{len(fields)} fields, but the first record has {len(names)}")
    return dict(zip(names, fields))
