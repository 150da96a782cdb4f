"""Blocks of bytes as whole lines. Only LF ends a line: U+2028, U+0085, VT and FF are text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pipeline.tables.records import Bad


def whole_lines(blocks: Iterable[bytes], limit: int) -> Iterator[tuple[int, bytes | Bad]]:
    """(number of its first line, bytes of whole lines), or (number, Bad) for one line above `limit` bytes.

    No more than a block and a line of at most `limit` bytes are held.
    """
    number, parts, held = 1, [], 0
    for block in blocks:
        cut = block.rfind(b"\n") + 1
        if not cut:
            held += len(block)
            if held <= limit:
                parts.append(block)
            continue
        first = block.find(b"\n") + 1
        if held + first - 1 > limit and held:
            yield number, too_large(held + first - 1, limit)
            number, parts, block, cut = number + 1, [], block[first:], cut - first
        if cut:
            data = b"".join([*parts, block[:cut]])
            yield number, data
            number += data.count(b"\n")
        parts, held = [block[cut:]], len(block) - cut
    if held > limit:
        yield number, too_large(held, limit)
    elif held:
        yield number, b"".join(parts)


def each_line(chunks: Iterable[tuple[int, bytes | Bad]], limit: int) -> Iterator[tuple[int, bytes | Bad]]:
    """Single lines without their LF, numbered; those above `limit` bytes as Bad."""
    for number, data in chunks:
        if isinstance(data, Bad):
            yield number, data
        else:
            yield from split_lines(number, data, limit)


def at_most(number: int, data: bytes, lines: int) -> Iterator[tuple[int, bytes]]:
    """A block of whole lines in blocks of no more than so many lines."""
    if data.count(b"\n") <= lines:
        yield number, data
        return
    whole = data.split(b"\n")
    for start in range(0, len(whole), lines):
        yield number + start, b"\n".join(whole[start : start + lines])


def split_lines(number: int, data: bytes, limit: int) -> Iterator[tuple[int, bytes | Bad]]:
    """The lines of one block of whole lines."""
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    for place, line in enumerate(lines, number):
        yield place, line if len(line) <= limit else too_large(len(line), limit)


def too_large(size: int, limit: int) -> Bad:
    return Bad("too_large", f"{size:,} bytes in one row, above data.max_row_bytes ({limit:,})")
