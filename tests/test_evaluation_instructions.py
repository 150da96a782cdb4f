"""Checkable instructions: one answer that follows and one that does not, for each rule."""

import pytest

from pipeline.evaluation.answer import Answer
from pipeline.evaluation.instructions import RULES, count_sentences, count_words, followed, instructions, instructions_all

CASES = {
    "keywords:existence": ({"keywords": ["Apple", "pear"]}, "apples and pears", "apples only"),
    "keywords:frequency": ({"keyword": "tea", "frequency": 2, "relation": "at least"}, "Tea, more tea", "tea"),
    "keywords:forbidden_words": ({"forbidden_words": ["rock", "岩石"]}, "rocket", "a rock"),
    "keywords:letter_frequency": ({"letter": "q", "let_frequency": 2, "let_relation": "less than"}, "quiet", "Q and q"),
    "language:response_language": ({"language": "de"}, "Das Wetter ist heute sehr schön und warm.", "The weather is nice and warm today."),
    "length_constraints:number_sentences": ({"num_sentences": 2, "relation": "at least"}, "One. Two!", "Only Dr. Smith came."),
    "length_constraints:number_paragraphs": ({"num_paragraphs": 2}, "a\n***\nb\n***\n", "a\n***\n***\nb"),
    "length_constraints:number_words": ({"num_words": 3, "relation": "less than"}, "two words", "three words here"),
    "length_constraints:nth_paragraph_first_word": (
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "then"}, "First.\n\n'Then, it rained.", "Then.\n\nFirst.",
    ),
    "detectable_content:number_placeholders": ({"num_placeholders": 2}, "[name] at [place]", "[name]"),
    "detectable_content:postscript": ({"postscript_marker": "P.S."}, "Bye.\nP. S. Write soon", "Bye."),
    "detectable_format:number_bullet_lists": ({"num_bullets": 2}, "* a\n- b", "* a\n* b\n* c"),
    "detectable_format:constrained_response": ({}, "My answer is maybe.", "Maybe."),
    "detectable_format:number_highlighted_sections": ({"num_highlights": 2}, "*one* and **two**", "*one* and **"),
    "detectable_format:multiple_sections": ({"section_spliter": "Part", "num_sections": 2}, "Part 1\na\nPart 2\nb", "Part 1 a"),
    "detectable_format:json_format": ({}, '```json\n{"a": 1}\n```', "a: 1"),
    "detectable_format:title": ({}, "<<A day>>\nIt was hot.", "A day"),
    "combination:two_responses": ({}, "one\n******\ntwo", "one\n******\none"),
    "combination:repeat_prompt": ({"prompt_to_repeat": "Say hi"}, "say hi. Hi!", "Hi!"),
    "startend:end_checker": ({"end_phrase": "That is all."}, 'So. "That is all."', "That is all. Or not."),
    "startend:quotation": ({}, '"quoted"', 'not "quoted"'),
    "change_case:capital_word_frequency": ({"capital_frequency": 2, "capital_relation": "at least"}, "NASA and ESA", "NASA only"),
    "change_case:english_capital": ({}, "THE WEATHER IS GOOD TODAY AND TOMORROW.", "The weather is good."),
    "change_case:english_lowercase": ({}, "the weather is good today and tomorrow.", "The weather is good."),
    "punctuation:no_comma": ({}, "none here", "one, here"),
}  # fmt: skip


def answer(text, ids, kwargs=None):
    return Answer(text, text, fields={"instruction_id_list": ids, "kwargs": kwargs or [{} for _ in ids]})


def test_every_rule_has_its_case():
    assert set(CASES) == set(RULES)


@pytest.mark.parametrize("name", CASES)
def test_rule(name):
    given, good, bad = CASES[name]
    nulls = {"another_key": None}  # published files hold every key, most of them null
    assert followed(answer(good, [name], [given | nulls])) == [(name, True)]
    assert followed(answer(bad, [name], [given])) == [(name, False)]
    assert followed(answer("  ", [name], [given])) == [(name, False)]


def test_share_and_all():
    both = ["punctuation:no_comma", "startend:quotation"]
    assert instructions(answer("plain", both)) == 0.5
    assert instructions_all(answer("plain", both)) == 0
    assert instructions_all(answer('"plain"', both)) == 1
    assert instructions(Answer("x", "x")) is None
    assert instructions(answer("x", ["unknown:rule"])) is None


def test_a_rule_without_its_values_is_not_followed_and_odd_fields_harm_nobody():
    assert followed(answer("x", ["keywords:frequency"])) == [("keywords:frequency", False)]
    assert followed(answer("x", ["keywords:frequency"], [{"keyword": 3, "frequency": "two"}])) == [("keywords:frequency", False)]
    assert followed(answer("x", "punctuation:no_comma")) == []
    assert followed(answer("x", [None, 3])) == []


def test_counting_words_and_sentences_in_two_scripts():
    assert count_words("It's a fine day.") == 5
    assert count_words("今天天气很好。") == 6
    assert count_sentences("今天很好。明天呢？不知道") == 3
    assert count_sentences("It costs 3.5 dollars. Really? Yes!") == 3
