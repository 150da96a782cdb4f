"""Row text that spells a control token (`<|im_end|>`) must not become one: marks it so that encoding keeps it text.

A marker character that occurs nowhere in the row is put behind the first character of each such string. Templates then
run on the marked text; `Tokenizer.encode_marked` takes the markers out again after it has set the scaffold's own tokens apart.
"""

from __future__ import annotations

import re
from functools import cached_property
from itertools import count
from typing import Any

FIRST_MARKER = 0xF0000  # private use


def unused_character(text: str, first: int = FIRST_MARKER) -> str:
    """The first character from code point `first` on that does not occur in the text."""
    return next(chr(code) for code in count(first) if chr(code) not in text)


class ControlTokens:
    """The control-token strings of one tokenizer."""

    def __init__(self, tokens: frozenset[str]) -> None:
        self.tokens = tokens
        self._first = re.compile("[" + "".join(re.escape(c) for c in sorted({t[0] for t in tokens})) + "]" if tokens else "(?!)")

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Any control token, the longest first."""
        return re.compile("|".join(re.escape(t) for t in sorted(self.tokens, key=lambda t: (-len(t), t))) or "(?!)")

    @cached_property
    def _starts(self) -> re.Pattern[str]:
        return re.compile(f"(?=(?:{self.pattern.pattern}))." if self.tokens else "(?!)", re.DOTALL)

    def count(self, text: str) -> int:
        """How many control-token strings the text holds."""
        return len(self.pattern.findall(text)) if self._first.search(text) else 0

    def marked(self, text: str, marker: str) -> tuple[str, ...]:
        """The control-token strings of a text that `escape` has put markers into."""
        if marker not in text:
            return ()
        head, *parts = text.split(marker)
        places = [len(head) - 1]
        for part in parts[:-1]:
            places.append(places[-1] + len(part))
        plain = "".join([head, *parts])
        return tuple(found.group() for place in places if (found := self.pattern.match(plain, place)))

    def escape(self, value: Any, marker: str) -> Any:
        """The same text, list or object with a marker inside each control-token string; keys are left alone."""
        if isinstance(value, str):
            return self._starts.sub(lambda found: found.group() + marker, value)
        if isinstance(value, dict):
            return {key: self.escape(item, marker) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.escape(item, marker) for item in value]
        return value
