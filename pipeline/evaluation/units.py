"""What counts as a unit of text: words where words have blanks between them, characters where they have none.

Chinese, Japanese, Thai, Lao, Khmer and Burmese are written without blanks: there a unit is one character, a base with its
marks (a grapheme). Everything else, Korean included, is counted in words. Nothing here knows metrics or rows.
"""

from __future__ import annotations

import string
from functools import lru_cache

import regex

from pipeline.text.characters import normal_form

DENSE = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]"
_DENSE = regex.compile(DENSE)
_HAN = regex.compile(r"\p{Han}")
_KANA = regex.compile(r"[\p{Hiragana}\p{Katakana}]")
_UNIT = regex.compile(rf"{DENSE}\p{{M}}*|(?:(?!{DENSE})[\p{{L}}\p{{M}}\p{{N}}])+")
_PLAIN_WORD = regex.compile(r"[\p{L}\p{M}\p{N}]+")
_ASCII_WORD = regex.compile(r"[a-z0-9]+")
_NON_ASCII_LETTER = regex.compile(r"(?![a-zA-Z])\p{L}")
_ARTICLE = regex.compile(r"\b(a|an|the)\b", flags=regex.UNICODE)
_DELETE_PUNCTUATION = str.maketrans("", "", string.punctuation)


def is_dense(text: str) -> bool:
    """Whether a text holds characters of a script written without blanks."""
    return not text.isascii() and _DENSE.search(text) is not None


def script_of(text: str) -> str:
    """`zh` for Han without kana, `ja` with kana, `dense` for Thai, Lao, Khmer and Burmese, else `words`."""
    if not is_dense(text):
        return "words"
    if _KANA.search(text):
        return "ja"
    return "zh" if _HAN.search(text) else "dense"


def fold(text: str) -> str:
    """Width and case folded: full-width letters, digits and punctuation become their ASCII forms."""
    return text.lower() if text.isascii() else normal_form("NFKC", text).casefold()


def units(text: str) -> list[str]:
    """Folded units of any text: mixed text gives characters and words side by side.

    Punctuation is dropped, unless there is nothing else: then its characters are the units.
    """
    found = _PLAIN_WORD.findall(text.lower()) if text.isascii() else _UNIT.findall(fold(text))
    return found or list("".join(text.split()))


def rouge_units(text: str, *, plain_english: bool) -> list[str]:
    """Tokens for ROUGE. English: exactly the default tokeniser of the rouge-score package, lower case [a-z0-9]+."""
    return (_ASCII_WORD.findall(text.lower()) if plain_english else None) or units(text)


def has_foreign_letters(text: str) -> bool:
    """Whether a text holds any letter outside a to z."""
    return not text.isascii() and _NON_ASCII_LETTER.search(text) is not None


def squad_normal(text: str) -> str:
    """Lower case, no ASCII punctuation, no articles, single blanks: SQuAD's own normalisation (Rajpurkar et al., 2016)."""
    text = text.lower().translate(_DELETE_PUNCTUATION)
    return " ".join(_ARTICLE.sub(" ", text).split())


@lru_cache(maxsize=4096)
def normal_units(text: str, dense: bool) -> tuple[str, ...]:
    """Units that exact match and F1 compare: SQuAD's tokens, or `units` where either text is in a dense script."""
    return tuple(units(text)) if dense else tuple(squad_normal(text).split())
