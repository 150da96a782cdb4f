"""Text of rows on a terminal: what would move the cursor, colour the screen or turn the reading direction is shown, not obeyed."""

from __future__ import annotations

import re

_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")  # all controls but tab and line end; direction overrides


def shown(text: str) -> str:
    r"""The text with control characters as JSON writes them: `\u001b[31m` for red."""
    return _OBEYED.sub(lambda found: f"\\u{ord(found.group()):04x}", text)
