"""Single characters: mojibake, Unicode normal form, width, control and invisible characters, quotation marks."""

from __future__ import annotations

import re
import unicodedata
from itertools import groupby

import ftfy
import regex
from ftfy.badness import is_bad

FULL_WIDTH = {
    code: code - 0xFEE0 for first, last in (("０", "９"), ("Ａ", "Ｚ"), ("ａ", "ｚ")) for code in range(ord(first), ord(last) + 1)
}
FULL_WIDTH_RUN = re.compile("[０-９Ａ-Ｚａ-ｚ]+")
HALF_KATAKANA = re.compile(r"[\uff66-\uff9f]+")
MARKS = regex.compile(r"[\P{ccc=0}\u0f73\u0f75\u0f81\uff9e\uff9f]{64,}+")  # whatever a normal form may move
ANSI_SEQUENCE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
LINE_ENDS = str.maketrans({"\x0b": "\n", "\x0c": "\n", "\x85": "\n"})
CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x9f\ufdd0-\ufdef\ufffe\uffff]")

# Invisible everywhere: soft hyphen, zero width space, word joiner, invisible operators, deprecated and annotation marks.
ALWAYS_INVISIBLE = "\u00ad\u034f\u180e\u200b\u2060-\u2064\u206a-\u206f\ufeff\ufff9-\ufffb\U0001d173-\U0001d17a"
DIRECTION = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # mean something only beside right-to-left text
JOINING_SCRIPTS = "".join(
    rf"\p{{Script={name}}}" for name in (
        "Arabic", "Syriac", "Nko", "Mongolian", "Mandaic", "Devanagari", "Bengali", "Gurmukhi", "Gujarati", "Oriya", "Tamil", "Telugu",
        "Kannada", "Malayalam", "Sinhala", "Khmer", "Myanmar", "Tibetan",
    )
)  # fmt: skip
FLAG = r"\U0001F3F4[\U000E0020-\U000E007E]+\U000E007F"
INVISIBLE = regex.compile(
    rf"[{ALWAYS_INVISIBLE}]"
    rf"|(?<![{JOINING_SCRIPTS}])\u200c"
    rf"|(?<![{JOINING_SCRIPTS}]|\p{{Extended_Pictographic}}|[\ufe0f\U0001F3FB-\U0001F3FF])\u200d"
    rf"|(?<=\p{{Extended_Pictographic}}|[\ufe0f\U0001F3FB-\U0001F3FF])\u200d(?!\p{{Extended_Pictographic}})"
    rf"|{FLAG}(*SKIP)(*FAIL)|[\U000E0000-\U000E007F]"
)
DIRECTION_MARK = re.compile(f"[{DIRECTION}]")
RIGHT_TO_LEFT = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\U00010800-\U00010fff\U0001e800-\U0001efff]")
CJK = "\u2e80-\u303f\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff"
DOUBLE_QUOTES = re.compile(f"(?<![{CJK}])[\u201c\u201d\u201e\u201f\u2033](?![{CJK}])")
SINGLE_QUOTES = re.compile(f"(?<![{CJK}])[\u2018\u2019\u201a\u201b\u2032](?![{CJK}])")


def fix_mojibake(text: str) -> str:
    """Text that was decoded with the wrong encoding, repaired by ftfy where its own test finds it bad."""
    return ftfy.fix_encoding(text) if not text.isascii() and is_bad(text) else text


def normalize_unicode(text: str, form: str = "NFC", fold_width: bool = True) -> str:
    """A Unicode normal form, and the common width for letters and digits.

    Width: full-width ASCII letters and digits and half-width katakana only; punctuation, superscripts, circled digits and
    unit signs mean something and stay, as NFC leaves them.
    """
    if fold_width:
        text = FULL_WIDTH_RUN.sub(lambda run: run.group().translate(FULL_WIDTH), text)
        text = HALF_KATAKANA.sub(lambda run: unicodedata.normalize("NFKC", run.group()), text)
    return normal_form(form, text)


def normal_form(form: str, text: str) -> str:
    """unicodedata.normalize in linear time: it sorts the marks after a letter by insertion, which takes minutes for 100,000 of them."""
    text = MARKS.sub(lambda run: _sorted_marks(run.group(), form.replace("C", "D")), text)
    return text if unicodedata.is_normalized(form, text) else unicodedata.normalize(form, text)  # type: ignore[arg-type]


def _sorted_marks(run: str, form: str) -> str:
    """A run of marks in canonical order (Unicode Standard Annex 15), each taken apart."""
    apart = (part for mark in run for part in unicodedata.normalize(form, mark))  # type: ignore[arg-type]
    groups = groupby(apart, key=lambda mark: unicodedata.combining(mark) > 0)
    return "".join(mark for moves, group in groups for mark in (sorted(group, key=unicodedata.combining) if moves else group))


def drop_control_characters(text: str) -> str:
    """C0 and C1 controls but tab and line ends, terminal colour sequences, noncharacters; VT, FF and NEL become line ends."""
    return CONTROL.sub("", ANSI_SEQUENCE.sub("", text).translate(LINE_ENDS))


def drop_invisible_characters(text: str) -> str:
    """Characters that nobody sees. Joiners stay in emoji sequences and in scripts that need them, direction marks beside
    right-to-left text, variation selectors always, tag characters in flags."""
    text = str(INVISIBLE.sub("", text))
    return text if RIGHT_TO_LEFT.search(text) else DIRECTION_MARK.sub("", text)


def unify_quotes(text: str) -> str:
    """Typographic quotation marks and primes as ASCII, except beside Chinese, Japanese or Korean characters."""
    return SINGLE_QUOTES.sub("'", DOUBLE_QUOTES.sub('"', text))
