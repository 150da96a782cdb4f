"""Offsets of a text before and after cleaning."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from text_rows import validated

from pipeline.core.params import PreprocessParams
from pipeline.text import offsets
from pipeline.text.offsets import offset_map
from pipeline.text.preprocess import Preprocessor

ALPHABET = "ab é１　\n<b>…x"


def cleaned(text):
    clean, _ = Preprocessor(PreprocessParams()).apply(validated([{"text": text}]))
    return clean["text"][0].as_py()


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("电话：１３８－００１２，联系：王老师（x²）", "王老师"), ("The cafÃ© is  open   until nine.", "until"),
        ("<p>One &amp; two</p><p>three</p>", "three"), ("a\u200bb  end", "end"), ("e\u0301tude no. 3", "no. 3"), ("plain text", "text"),
    ],
)  # fmt: skip
def test_a_word_is_found_again_after_cleaning(text, word):
    after = cleaned(text)
    moved = offset_map(text, after)
    start = text.index(word)
    assert after[moved.after(start) :].startswith(word)
    assert moved.before(after.index(word)) == start


@given(st.text(ALPHABET, max_size=40), st.text(ALPHABET, max_size=40))
def test_what_lies_between_changes_is_the_same_in_both(before, after):
    moved = offset_map(before, after)
    old, new, rebuilt = 0, 0, ""
    for change in moved.changes:
        assert before[old : change.start] == after[new : change.new_start]
        rebuilt += before[old : change.start] + after[change.new_start : change.new_end]
        old, new = change.end, change.new_end
    assert rebuilt + before[old:] == after
    places = [moved.after(offset) for offset in range(len(before) + 1)]
    assert places == sorted(places) and places[-1] == len(after)


def test_a_very_long_change_is_told_as_one(monkeypatch):
    monkeypatch.setattr(offsets, "MAX_CHARS", 5)
    (change,) = offset_map("start 1234567 end", "start 7 and more end").changes
    assert (change.start, change.new_start) == (6, 6)
    assert offset_map("start 1234567 end", "start 7 and more end").after(14) == 17
