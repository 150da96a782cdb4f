"""Stop strings and the text of a finished answer. Both look at whole text, never at single tokens.

Of all stop strings the one that begins earliest ends the answer; of two that begin at one place, the shorter. That is the
same for every way the text can be cut into tokens: while an earlier-beginning stop string could still be completed,
the answer goes on.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeVar

from pipeline.text.token_bytes import incomplete_tail
from pipeline.text.tokenizer import Tokenizer

INCOMPLETE = "incomplete_character"
TAIL_TOKENS = 16  # hold the last four bytes of a text, empty tokens among them
Text = TypeVar("Text", str, bytes)


class StopMatcher:
    """Watches one answer; implements engine.request.Stopper. Matches bytes of UTF-8, which never begin inside a character."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str]) -> None:
        self._bytes_of = tokenizer.bytes_of
        self._strips_blank = tokenizer.strips_first_blank
        self._stops = [(stop.encode(), stop) for stop in stops]
        self._longest = max((len(data) for data, _ in self._stops), default=0)
        self._tail = b""  # the end of the answer that may still be part of a match
        self._started = False

    def push(self, token_id: int) -> str | None:
        """Take the next generated token; return the stop string that ends the answer, else None."""
        new = self._bytes_of[token_id] if token_id < len(self._bytes_of) else b""
        if not new:
            return None
        if not self._started and self._strips_blank:
            new = new.removeprefix(b" ")
        self._started = True
        self._tail += new
        found = first_stop(self._tail, self._stops)
        if found is None:
            self._tail = self._tail[max(0, len(self._tail) - self._longest + 1) :]
            return None
        start, stop = found
        return None if self._may_begin_before(start) else stop

    def _may_begin_before(self, start: int) -> bool:
        """Whether the end of the text is the unfinished beginning of a stop string that starts before `start`."""
        tail = self._tail
        return any(
            tail.endswith(data[: len(tail) - at]) for data, _ in self._stops for at in range(max(0, len(tail) - len(data) + 1), start)
        )


def first_stop(text: Text, stops: Sequence[tuple[Text, str]]) -> tuple[int, str] | None:
    """Place and name of the stop string that begins earliest, the shortest of those; None where there is none."""
    found = [(text.find(data), len(data), name) for data, name in stops if data in text]
    return (min(found)[0], min(found)[2]) if found else None


def final_text(
    tokenizer: Tokenizer, ids: Sequence[int], stop_string: str | None = None, *,
    stop_ids: Collection[int] = (), stops: Sequence[str] = (),
) -> tuple[str, str | None]:  # fmt: skip
    """The text of an answer and a detail: the stop string it was cut at, `incomplete_character`, or None.

    All ids are decoded at once. A stop token at the end is left out, a character that was not finished is dropped.
    stop_string: the one a StopMatcher returned. stops: all of them, for answers that reached their limit while a
    longer match was awaited.
    """
    if ids and ids[-1] in stop_ids:
        ids = ids[:-1]
    text, cut = _whole_characters(tokenizer, ids)
    wanted = [stop_string] if stop_string else list(stops)
    found = first_stop(text, [(stop, stop) for stop in wanted])
    if found:
        return text[: found[0]], found[1]
    return text, INCOMPLETE if cut else None


def _whole_characters(tokenizer: Tokenizer, ids: Sequence[int]) -> tuple[str, bool]:
    """The decoded text without an unfinished character at its end, and whether there was one.

    The tokens of the last characters are decoded by their bytes, because one of them may end one character and begin the next.
    """
    pieces = [tokenizer.bytes_of[i] if i < len(tokenizer.bytes_of) else b"" for i in ids]
    missing = incomplete_tail(b"".join(pieces[-TAIL_TOKENS:]))
    if not missing:
        return tokenizer.decode(ids), False
    kept, tail = len(ids), b""
    while kept and (len(tail) < missing or incomplete_tail(b"".join(pieces[max(0, kept - TAIL_TOKENS) : kept]))):
        kept -= 1
        tail = pieces[kept] + tail
    return tokenizer.decode(ids[:kept]) + tail[: len(tail) - missing].decode("utf-8", "replace"), True
