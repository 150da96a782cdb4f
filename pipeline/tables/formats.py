"""Which format a file has: told by its content first and its name second, never assumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.tables import json_text
from pipeline.tables.records import BadRow, Damaged
from pipeline.tables.streams import byte_order_mark, read_head

LONG_LINE_BYTES = 16 * 1024 * 1024  # how far a first line is followed to tell lines from a document


def detect_format(file: Path, nested: bool = False, encoding: str = "utf-8") -> str:
    """Format of a file by its content first and its name second.

    nested: data.records is set, so JSON is a document. encoding: what the bytes are where no mark says it; a wrong
    one is found later, by the reader. Raises Damaged when neither content nor name tell the format.
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
    text = _as_utf8(head, byte_order_mark(head) or encoding).lstrip(b" \t\r\n")
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


def _as_utf8(head: bytes, encoding: str) -> bytes:
    try:
        return head.decode(encoding, "replace").removeprefix("\ufeff").encode()
    except UnicodeError:
        return head


def _value(line: bytes) -> Any:
    """The JSON value that fills the line, None where there is none."""
    try:
        return json_text.parse(line)
    except BadRow:
        return None
