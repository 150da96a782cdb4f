"""Sensitive words in a text, with word id and span, in time linear in the text whatever the list's size (Aho-Corasick).

A word list is a text file: one word or phrase a line, `[category]` heads a group, `!phrase` allows a phrase in which a word is
harmless, `#` starts a comment. Text and words are folded alike: width, case, zero-width characters, traditional Chinese.
A word that begins or ends in a letter or digit of a script with blanks must begin or end at a word's edge; Chinese need not.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import ahocorasick
import regex
import zhconv

from pipeline.core.errors import ParamsError
from pipeline.core.hashing import sha256_json
from pipeline.evaluation.answer import Answer
from pipeline.evaluation.assets import read_list
from pipeline.evaluation.units import DENSE

_INVISIBLE = regex.compile(r"[\p{Cf}\u034F\u115F\u1160\u3164\uFE00-\uFE0F]")
_WORD = regex.compile(rf"(?!{DENSE})[\p{{L}}\p{{N}}]")


@dataclass(frozen=True)
class Hit:
    """id: `category:line of the list`, which names a word without saying it. start and end: characters of the text given."""

    id: str
    category: str
    start: int
    end: int


class WordList:
    """A compiled list; `find` gives its hits in a text, in order. Words inside an allowed phrase do not count."""

    def __init__(self, text: str, where: str = "word list") -> None:
        self._words = ahocorasick.Automaton()
        self._allowed = ahocorasick.Automaton()
        self.digest = sha256_json(text)
        category = "general"
        for number, line in enumerate(text.splitlines(), 1):
            entry = line.partition("#")[0].strip()
            if entry.startswith("[") and entry.endswith("]"):
                category = entry[1:-1].strip() or "general"
            elif entry:
                self._add(entry, category, number, where)
        for automaton in (self._words, self._allowed):
            automaton.make_automaton()

    def find(self, text: str) -> list[Hit]:
        """Hits by start, then end; overlapping ones are all reported."""
        folded, places = fold(text)
        hits = [(start, end, word) for start, end, word in _matches(self._words, folded) if _at_edges(folded, start, end)]
        if hits and len(self._allowed):
            allowed = [(start, end) for start, end, _ in _matches(self._allowed, folded)]
            hits = [hit for hit in hits if not any(start <= hit[0] and hit[1] <= end for start, end in allowed)]
        found = [Hit(f"{category}:{number}", category, places[start], places[end - 1] + 1) for start, end, (category, number) in hits]
        return sorted(found, key=lambda hit: (hit.start, hit.end, hit.id))

    def __len__(self) -> int:
        return len(self._words)

    def _add(self, entry: str, category: str, number: int, where: str) -> None:
        allowed = entry.startswith("!")
        folded, _ = fold(entry.removeprefix("!").strip())
        folded = folded.strip()
        if not folded:
            raise ParamsError(f"{where} line {number}: nothing is left of {entry!r} after folding; remove the line")
        automaton = self._allowed if allowed else self._words
        if folded not in automaton:
            automaton.add_word(folded, (len(folded), (category, number)))


def fold(text: str) -> tuple[str, list[int]]:
    """(folded text, for each of its characters the index of the character of `text` it came from)."""
    if text.isascii():
        return text.lower(), list(range(len(text)))
    folded: list[str] = []
    places: list[int] = []
    for index, character in enumerate(text):
        for piece in _fold_one(character):
            folded.append(piece)
            places.append(index)
    return "".join(folded), places


def sensitive(answer: Answer, words: WordList | None = None) -> float:
    """1 when the answer holds a word of the list outside the phrases it allows; None: the package's own list."""
    return float(bool((words or _bundled()).find(answer.text)))


def word_list(name: str | None, assets: Path) -> WordList:
    """The list in a file under data/assets, or the package's own small one. Raises MissingInput, ParamsError."""
    return WordList(read_list(name, assets, "sensitive.txt", "evaluate.sensitive_words"), name or "sensitive.txt")


@cache
def _fold_one(character: str) -> str:
    """Nothing for what cannot be seen; else width and case folded, traditional Chinese simplified character by character."""
    if _INVISIBLE.fullmatch(character):
        return ""
    folded = unicodedata.normalize("NFKC", character).casefold()
    return "".join(_simplified(piece) for piece in folded)


def _simplified(character: str) -> str:
    simple: str = zhconv.convert(character, "zh-cn") if "\u3400" <= character <= "\u9fff" else character
    return simple if len(simple) == 1 else character


@cache
def _bundled() -> WordList:
    return word_list(None, Path())


def _matches(automaton: ahocorasick.Automaton, text: str) -> list[tuple[int, int, tuple[str, int]]]:
    """(start, end, word) of all occurrences; an automaton without words finds nothing."""
    if not len(automaton):
        return []
    return [(end + 1 - length, end + 1, word) for end, (length, word) in automaton.iter(text)]


def _at_edges(text: str, start: int, end: int) -> bool:
    return not (_joined(text, start) or _joined(text, end))


def _joined(text: str, place: int) -> bool:
    """Whether two word characters of scripts with blanks meet at a place: then it is inside a word."""
    return 0 < place < len(text) and bool(_WORD.match(text[place - 1])) and bool(_WORD.match(text[place]))
