"""Which language an answer is in, by the same detector that names a prompt's; `und` when the prose is too short to tell."""

from __future__ import annotations

from functools import lru_cache

import regex

from pipeline.evaluation.units import DENSE
from pipeline.text.language import UNSURE, languages

MIN_LETTERS = 16  # of scripts written with blanks; two in those without, where a character says more

_DENSE = regex.compile(rf"{DENSE}|\p{{Hangul}}")
_CODE = regex.compile(r"```.*?(?:```|\Z)|https?://\S+", flags=regex.S)
_LOOKED_AT_CHARS = 2000
_COUNTED_CHARS = 200


@lru_cache(maxsize=8192)
def language_of(text: str) -> str:
    """Language of the prose in a text; code blocks and addresses do not count."""
    text = text[:_LOOKED_AT_CHARS]
    prose = " ".join((_CODE.sub(" ", text) if "`" in text or "://" in text else text).split())
    enough = sum(map(str.isalpha, prose[:_COUNTED_CHARS])) >= MIN_LETTERS or (not prose.isascii() and len(_DENSE.findall(prose)) >= 2)
    return languages([prose])[0] if enough else UNSURE
