"""Sensitive words: folding, edges by script, allow-list, spans in the text as it was, linear time whatever the list."""

from pathlib import Path

import pytest

from pipeline.core.errors import ParamsError
from pipeline.evaluation.sensitive import Hit, WordList, fold, word_list

LIST = WordList("# comment\n[drugs]\nbad\n毒品\n麻藥\n[names]\nJohn Doe  # a person\n!bad luck\n!缉毒品\n")


def spans(text):
    return [text[hit.start : hit.end] for hit in LIST.find(text)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("this is bad.", ["bad"]), ("BAD", ["BAD"]), ("ｂａｄ", ["ｂａｄ"]), ("b\u200bad", ["b\u200bad"]), ("ba\u00add", ["ba\u00add"]),
        ("badge", []), ("forbad", []), ("not-bad", ["bad"]), ("bad1", []), ("很bad的", ["bad"]), ("bad bad", ["bad", "bad"]),
        ("他买毒品了", ["毒品"]), ("麻药和麻藥", ["麻药", "麻藥"]), ("bad luck", []), ("缉毒品", []), ("bad luck is bad", ["bad"]),
        ("JOHN DOE", ["JOHN DOE"]), ("", []), ("\u200b", []), ("é bad é", ["bad"]), ("ﬁne bad", ["bad"]),
    ],
)  # fmt: skip
def test_hits(text, found):
    assert spans(text) == found


def test_hits_carry_word_id_category_and_span():
    assert LIST.find("ok 毒品")[0] == Hit("drugs:4", "drugs", 3, 5)
    assert LIST.find("John doe")[0].id == "names:7"


def test_folding_keeps_the_place_of_every_character():
    text = "Ａ\u200bﬁ國"
    folded, places = fold(text)
    assert folded == "afi国" and places == [0, 2, 2, 3]


def test_overlapping_words_are_all_found():
    words = WordList("ab\nabc\nbc\n毒\n毒品")
    assert [(hit.start, hit.end) for hit in words.find("毒品 abc ab")] == [(0, 1), (0, 2), (3, 6), (7, 9)]


def test_an_empty_list_finds_nothing_and_an_invisible_word_is_refused():
    assert WordList("# nothing\n[empty]\n").find("anything") == []
    with pytest.raises(ParamsError, match="line 2"):
        WordList("fine\n\u200b\n")


def test_steps_grow_with_the_text_and_not_with_the_list():
    words = WordList("\n".join(f"word{i}x" for i in range(20_000)))
    assert len(words) == 20_000
    assert [hit.id for hit in words.find("a word19999x here")] == ["general:20000"]


def test_the_packages_own_list_loads():
    own = word_list(None, Path())
    assert {hit.category for hit in own.find("-----BEGIN PRIVATE KEY-----")} == {"secrets"}
    assert own.find("The weather is fine. 天气很好。") == []
