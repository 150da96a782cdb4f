"""Which languages an answer may be in: what the row says, else its references, else the prompt and the languages it names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.evaluation.instructions import given_language
from pipeline.evaluation.language import language_of
from pipeline.text.language import UNSURE

FIELDS = ("answer_language", "response_language", "target_language", "target_lang")  # a code or an English or Chinese name

_NAMES = {
    "english": "en", "chinese": "zh", "mandarin": "zh", "cantonese": "zh", "japanese": "ja", "korean": "ko", "french": "fr", "german": "de",
    "spanish": "es", "portuguese": "pt", "italian": "it", "russian": "ru", "ukrainian": "uk", "polish": "pl", "czech": "cs", "dutch": "nl",
    "swedish": "sv", "danish": "da", "norwegian": "no", "finnish": "fi", "greek": "el", "turkish": "tr", "arabic": "ar", "hebrew": "he",
    "persian": "fa", "farsi": "fa", "urdu": "ur", "hindi": "hi", "marathi": "mr", "bengali": "bn", "punjabi": "pa", "gujarati": "gu",
    "tamil": "ta", "telugu": "te", "kannada": "kn", "nepali": "ne", "thai": "th", "vietnamese": "vi", "indonesian": "id", "malay": "ms",
    "swahili": "sw", "bulgarian": "bg", "romanian": "ro", "hungarian": "hu", "latin": "la", "esperanto": "eo",
    "英": "en", "中": "zh", "汉": "zh", "日": "ja", "韩": "ko", "法": "fr", "德": "de", "西班牙": "es", "葡萄牙": "pt", "意大利": "it",
    "俄": "ru", "阿拉伯": "ar", "泰": "th", "越南": "vi", "拉丁": "la", "希腊": "el", "印地": "hi", "波斯": "fa", "土耳其": "tr",
}  # fmt: skip
_ENGLISH = "|".join(name for name in _NAMES if name.isascii())
_CHINESE = "|".join(sorted((name for name in _NAMES if not name.isascii()), key=len, reverse=True))
_NAMED = re.compile(
    rf"\b(?:in|into|to|using|only|speak)\s+(?:\w+\s+)?({_ENGLISH})\b|\b({_ENGLISH})\s+(?:language|translation|version|words?)\b"
    rf"|({_CHINESE})(?:语|文)|({_CHINESE})译",
    re.IGNORECASE,
)


def wanted_languages(fields: Mapping[str, Any], references: Sequence[str], prompt: str, language: str) -> set[str]:
    """Codes as `language_of` gives them; empty where nothing tells. language: of the prompt.

    A prompt that names a language ("into French", 用英语) may want it or only speak of it, so it counts beside the prompt's own.
    """
    told = {code for field in FIELDS if (code := language_code(fields.get(field)))} or given_language(fields)
    if told:
        return told
    if from_references := {language_of(text) for text in references} - {UNSURE}:
        return from_references
    own = {language} - {UNSURE, ""}
    return own | {_NAMES[name.lower()] for match in _NAMED.findall(prompt) for name in match if name}


def language_code(value: Any) -> str | None:
    """`de` for de, de-DE, German, 德语; None for what is no language."""
    if not isinstance(value, str):
        return None
    name = value.strip().lower()
    code = _NAMES.get(name) or _NAMES.get(name.rstrip("语文"))
    return code or (name[:2] if re.fullmatch(r"[a-z]{2}(?:[-_]\w+)*", name) else None)
