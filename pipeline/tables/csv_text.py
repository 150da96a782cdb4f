"""CSV and TSV by RFC 4180: what the delimiter is and whether quotes count is told by params, never guessed.

A record ends at LF or CRLF outside quotes. A faulty quote costs the line it stands on: reading goes on with the next.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from pipeline.tables.json_text import invalid_utf8
from pipeline.tables.records import Bad, Record


class Dialect:
    """Delimiter and quoting of one file. loose: a bare quote inside an unquoted field is text (usual in TSV)."""

    def __init__(self, delimiter: str, quoting: bool, loose: bool) -> None:
        self.delimiter, self.quoting = delimiter, quoting
        stop = re.escape(delimiter)
        inside = '(?:[^"]++|"")*+'
        bare = f'(?!")[^{stop}]*+' if loose else f'[^"{stop}]*+'
        field = f'(?:"{inside}"|{bare})'
        self._record = re.compile(f"{field}(?:{stop}{field})*+", re.DOTALL)
        self._fields = re.compile(f'(?:^|{stop})(?:"({inside})"|({bare}))', re.DOTALL)
        self._opens = re.compile(f'(?:{field}{stop})*+"{inside}$', re.DOTALL)

    def fields(self, record: str) -> list[str] | None:
        """Fields of one whole record, None when its quotes are faulty."""
        if not self.quoting or '"' not in record:
            return record.split(self.delimiter)
        if self._record.fullmatch(record) is None:
            return None
        return [quoted.replace('""', '"') if quoted else bare for quoted, bare in self._fields.findall(record)]

    def opens(self, text: str) -> bool:
        """True when `text` ends inside a quoted field, so that the record goes on."""
        return self.quoting and text.count('"') % 2 == 1 and self._opens.match(text) is not None


def records(lines: Iterable[tuple[int, bytes | Bad]], dialect: Dialect, limit: int) -> Iterator[Record]:
    """Records with the line they start on: a list of fields, or Bad. Blank lines are no records. limit: bytes of one."""
    source = _Pushback(lines)
    for number, line in source:
        text = _decode(line)
        if isinstance(text, Bad):
            yield Record(number, text)
        elif dialect.opens(text):
            yield from _quoted(number, text, source, dialect, limit)
        elif text.strip("\r"):
            yield Record(number, _split(text, dialect))


class _Pushback:
    """An iterator that lines can be given back to."""

    def __init__(self, lines: Iterable[tuple[int, bytes | Bad]]) -> None:
        self._lines = iter(lines)
        self._back: list[tuple[int, bytes | Bad]] = []

    def __iter__(self) -> _Pushback:
        return self

    def __next__(self) -> tuple[int, bytes | Bad]:
        return self._back.pop() if self._back else next(self._lines)

    def give_back(self, lines: list[tuple[int, bytes | Bad]]) -> None:
        self._back.extend(reversed(lines))


def _quoted(number: int, text: str, source: _Pushback, dialect: Dialect, limit: int) -> Iterator[Record]:
    """A record whose quoted field goes on over line ends; given up, one line costs and the others are read again."""
    parts, taken, size = [text], [], len(text)
    for item in source:
        taken.append(item)
        more = _decode(item[1])
        if isinstance(more, Bad):
            break
        parts.append(more)
        size += len(more) + 1
        if size > limit:
            break
        if more.count('"') % 2:
            fields = dialect.fields("\n".join(parts).removesuffix("\r"))
            if fields is None:
                break
            yield Record(number, fields)
            return
    source.give_back(taken)
    yield Record(number, Bad("csv_quote", "a quoted field that starts on this line is never closed properly" + _WAY_OUT))


_WAY_OUT = '; inside quotes a quote is written twice (""); set data.quoting: false where quotes are plain text'


def _split(text: str, dialect: Dialect) -> list[str] | Bad:
    fields = dialect.fields(text.removesuffix("\r"))
    return Bad("csv_quote", "a quote stands where RFC 4180 has none" + _WAY_OUT) if fields is None else fields


def _decode(line: bytes | Bad) -> str | Bad:
    if isinstance(line, Bad):
        return line
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        return Bad("invalid_utf8", invalid_utf8(error))
