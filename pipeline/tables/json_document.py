"""One JSON document as a stream of elements, cut out as bytes without parsing them; memory is bounded by one element.

Cutting looks at quotes and brackets only. Each element is parsed strictly later, so a fault inside one costs one row;
a fault between elements is damage of the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from pipeline.tables.records import Bad, Damaged

_STRING_REST = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_INSIDE = re.compile(rb'(?:[^"\[\]{}]++|"(?:[^"\\]++|\\.)*+")*+', re.DOTALL)  # up to a bracket or an unfinished string
_BETWEEN = re.compile(rb'(?:[^"\[\]{},:]++|"(?:[^"\\]++|\\.)*+")*+', re.DOTALL)
_BLANK = re.compile(rb"[ \t\r\n]*+")
_NUMBER_OF = {ord(b"{"): 1, ord(b"["): 1, ord(b"}"): -1, ord(b"]"): -1}
QUOTE, BACKSLASH = ord(b'"'), ord(b"\\")


class Cutter:
    """A position in a document. Values are cut at depth 0; `limit` bytes are kept of one, the rest is skipped."""

    def __init__(self, blocks: Iterable[bytes], limit: int) -> None:
        self._blocks = iter(blocks)
        self._limit = limit
        self._buffer = b""
        self._at = 0

    def peek(self) -> int | None:
        """The next byte that is not blank, None at the end."""
        while True:
            match = _BLANK.match(self._buffer, self._at)
            assert match is not None
            self._at = match.end()
            if self._at < len(self._buffer):
                return self._buffer[self._at]
            if not self._more(self._at):
                return None

    def take(self, expected: bytes) -> None:
        """Step over one punctuation byte. Raises Damaged when another stands there."""
        if self.peek() != expected[0]:
            raise Damaged(f"expected {expected.decode()} but {self._here()}")
        self._at += 1

    def value(self) -> bytes | Bad:
        """The next value up to a comma, colon or closing bracket of its surroundings; Bad when beyond the limit."""
        self.peek()
        kept, size, depth, in_string = [], 0, 0, False
        start = self._at
        while True:
            self._at, depth, in_string, finished = self._scan(self._at, depth, in_string)
            size += self._at - start
            if size <= self._limit:
                kept.append(self._buffer[start : self._at])
            start = self._at
            if finished:
                break
            if not self._more(self._at):
                if depth or in_string:
                    raise Damaged("the file ends inside a value")
                break
            start = self._at
        if size > self._limit:
            return Bad("too_large", f"{size:,} bytes, above data.max_row_bytes ({self._limit:,})")
        return b"".join(kept).rstrip(b" \t\r\n")

    def end(self) -> None:
        """Raises Damaged unless only blanks are left."""
        if self.peek() is not None:
            raise Damaged(f"the document is over but {self._here()}")

    def _scan(self, at: int, depth: int, in_string: bool) -> tuple[int, int, bool, bool]:
        """Go on to the end of the value or of the buffer: (place, depth, inside a string, value finished)."""
        buffer, size = self._buffer, len(self._buffer)
        while at < size:
            if in_string:
                at = _STRING_REST.match(buffer, at).end()  # type: ignore[union-attr]
                if at >= size or buffer[at] == BACKSLASH:
                    return at, depth, True, False
                at, in_string = at + 1, False
                continue
            at = (_INSIDE if depth else _BETWEEN).match(buffer, at).end()  # type: ignore[union-attr]
            if at >= size:
                break
            byte = buffer[at]
            if byte == QUOTE:
                at, in_string = at + 1, True
                continue
            step = _NUMBER_OF.get(byte, 0)
            if depth == 0 and step != 1:
                return at, 0, False, True
            at, depth = at + 1, depth + step
        return at, depth, in_string, False

    def _more(self, keep_from: int) -> bool:
        block = next(self._blocks, None)
        self._buffer = self._buffer[keep_from:] + (block or b"")
        self._at = 0
        return block is not None

    def _here(self) -> str:
        if self._at >= len(self._buffer):
            return "the file ends"
        return f"found {self._buffer[self._at : self._at + 20].decode(errors='replace')!r}"


def elements(cutter: Cutter) -> Iterator[bytes | Bad]:
    """The elements of the list that starts here. Raises Damaged after the sound ones."""
    cutter.take(b"[")
    if cutter.peek() == ord(b"]"):
        cutter.take(b"]")
        return
    while True:
        yield _present(cutter.value(), "element")
        if cutter.peek() != ord(b","):
            break
        cutter.take(b",")
    cutter.take(b"]")


def members(cutter: Cutter) -> Iterator[bytes]:
    """Keys, as JSON strings, of the object that starts here; the caller takes each value before asking for the next."""
    cutter.take(b"{")
    if cutter.peek() == ord(b"}"):
        cutter.take(b"}")
        return
    while True:
        key = _present(cutter.value(), "key")
        cutter.take(b":")
        yield key if isinstance(key, bytes) else b'""'
        if cutter.peek() != ord(b","):
            break
        cutter.take(b",")
    cutter.take(b"}")


def _present(value: bytes | Bad, what: str) -> bytes | Bad:
    if value == b"":
        raise Damaged(f"an {what} is missing between two commas or before a closing bracket")
    return value
