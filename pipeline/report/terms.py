"""The words of a text for mining: lower-cased words, and pairs of characters where a script writes without blanks."""

from __future__ import annotations

import re
from itertools import pairwise

from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

_PIECE = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\u0e00-\u0e7f]+|[^\W\d_]+(?:['’][^\W\d_]+)?|\d+")
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\u0e00-\u0e7f]")
MAX_CHARS = 2000

STOP = ENGLISH_STOP_WORDS | frozenset("的了是在和有我你他不这请吗呢") | {"一个", "什么", "怎么"}


def terms(text: str) -> list[str]:
    """Terms in order: words; character pairs of Chinese, Japanese and Thai runs (a lone character stands alone); `#` for numbers."""
    found: list[str] = []
    for piece in _PIECE.findall(text[:MAX_CHARS].lower()):
        if piece[0].isdigit():
            found.append("#")
        elif not _UNSPACED.match(piece) or len(piece) == 1:
            found.append(piece)
        else:
            found.extend(piece[i : i + 2] for i in range(len(piece) - 1))
    return found


def telling(text: str) -> list[str]:
    """Terms that can tell one group of texts from another: without stop words, and pairs of neighbouring words beside the words."""
    words = [term for term in terms(text) if term not in STOP]
    pairs = [f"{a} {b}" for a, b in pairwise(words) if not (_UNSPACED.match(a) or _UNSPACED.match(b) or "#" in (a, b))]
    return [word for word in words if word != "#"] + pairs


_WORD_OR_MARK = re.compile(r"\s+|[^\W\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\u0e00-\u0e7f]+|.", re.DOTALL)


def pieces(text: str) -> list[str]:
    """The text in pieces that a difference is shown by: words, blanks, marks, single Chinese, Japanese and Thai characters."""
    found: list[str] = _WORD_OR_MARK.findall(text)
    return found
