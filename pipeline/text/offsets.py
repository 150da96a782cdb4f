"""Where each character of a text is after cleaning, and where it came from: spans of references and annotations move with it.

Made from the two texts alone, which the tables `validated` and `clean` both keep, so it holds for any steps in any order.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from rapidfuzz.distance import Levenshtein, Postfix, Prefix

MAX_CHARS = 20_000  # of what lies between a common start and end; more than that is one change


@dataclass(frozen=True)
class Change:
    """A stretch that cleaning replaced: characters [start, end) of the text before, and [new_start, new_end) of the text after."""

    start: int
    end: int
    new_start: int
    new_end: int


@dataclass(frozen=True)
class OffsetMap:
    """changes: rising, apart from each other; everything between them is the same in both texts. Offsets count characters."""

    changes: tuple[Change, ...]

    def after(self, offset: int) -> int:
        """Where the character at an offset of the text before stands in the text after; at its change's start when it was replaced."""
        place = bisect_right(self.changes, offset, key=lambda change: change.start) - 1
        if place < 0:
            return offset
        change = self.changes[place]
        return change.new_start if offset < change.end else offset - change.end + change.new_end

    def before(self, offset: int) -> int:
        """The other way round."""
        return OffsetMap(tuple(Change(c.new_start, c.new_end, c.start, c.end) for c in self.changes)).after(offset)


def offset_map(before: str, after: str) -> OffsetMap:
    """The changes that turn one text into the other, as few as there can be (Levenshtein)."""
    first = Prefix.similarity(before, after)
    last = Postfix.similarity(before[first:], after[first:])
    old, new = before[first : len(before) - last], after[first : len(after) - last]
    if not old and not new:
        return OffsetMap(())
    if max(len(old), len(new)) > MAX_CHARS:
        return OffsetMap((Change(first, first + len(old), first, first + len(new)),))
    changes: list[Change] = []
    for code in Levenshtein.opcodes(old, new):
        if code.tag == "equal":
            continue
        change = Change(first + code.src_start, first + code.src_end, first + code.dest_start, first + code.dest_end)
        if changes and changes[-1].end == change.start and changes[-1].new_end == change.new_start:
            joined = changes.pop()
            change = Change(joined.start, change.end, joined.new_start, change.new_end)
        changes.append(change)
    return OffsetMap(tuple(changes))
