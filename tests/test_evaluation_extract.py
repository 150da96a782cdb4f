"""What is taken out of an answer: numbers in every spelling, letters, JSON by class, text after a marker, no reasoning block."""

import sys

import pytest

from pipeline.core.errors import ParamsError
from pipeline.evaluation.extract import build_extractor, choice_letters, split_reasoning, wants_json
from pipeline.evaluation.jsontext import parse_json
from pipeline.evaluation.numbers import find_numbers, last_number, plain, whole_number

FENCE = "```"


def extract(spec, text, finish="stop", fields=None):
    return build_extractor(spec)(fields or {})(text, finish)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("The answer is $1,234.50.", "1234.5"), ("-5", "-5"), ("x = −7", "-7"), ("-$3", "-3"), ("$-3", "-3"), ("between 10-20", "20"),
        ("１２３", "123"), ("共１，２３４元", "1234"), ("答案是十二", "12"), ("一共有五个苹果", "5"), ("三百零五", "305"),
        ("一百五", "150"),
        ("两万三", "23000"), ("一亿二千万", "120000000"), ("3.5万元", "35000"), ("负五", "-5"),
        ("二零二四年", "2024"), ("三点一四", "3.14"),
        ("百分之二十五", "25"), ("50%", "50"), ("3/4", "0.75"), ("1/3", "1/3"), ("1e3", "1000"),
        ("1,2,3", "3"), ("on 12/25/2024 she had 42", "42"),
        ("第三个是7", "7"), ("5. It is 6.", "6"), (".5", "0.5"), ("2.50", "2.5"), ("1/0", None),
        ("我们一起去四川", None), ("十分高兴", None),
        ("千万别去", None), ("none", None), ("", None), ("1" * 400, None), ("９．５", "9.5"), ("₂", None),
    ],
)  # fmt: skip
def test_last_number(text, number):
    found = last_number(text)
    assert (None if found is None else plain(found.value)) == number


def test_numbers_know_where_they_stand():
    text = "of 3 apples, 12 pears"
    assert [text[n.start : n.end].strip() for n in find_numbers(text)] == ["3", "12"]


@pytest.mark.parametrize(
    ("text", "whole"),
    [("42", True), ("$1,000", True), ("12 km", True), ("30分钟", True), ("about 12 or so", False), ("1 2", False), ("", False)],
)
def test_a_bare_number_is_a_number_and_perhaps_its_unit(text, whole):
    assert (whole_number(text) is not None) is whole


@pytest.mark.parametrize(
    ("text", "letters"),
    [
        ("B", "B"), ("b.", "B"), ("The answer is B.", "B"), ("Answer: (C)", "C"), ("**Answer: D**", "D"), ("A. because it is so", "A"),
        ("答案：ABD", "ABD"), ("故选D。", "D"), ("选 Ａ 和 Ｃ", "AC"), ("The correct options are A and C.", "AC"), ("正确答案为【A】", "A"),
        ("Option B is correct, not C", "B"), ("ANSWER: B", "B"), ("I think a cat", ""), ("Apple is a fruit", ""), ("A bird sat", ""),
        ("First I thought answer A. No: the answer is D", "D"), ("", ""), ("答案是B，因为A不对", "B"),
    ],
)  # fmt: skip
def test_choice_letters(text, letters):
    assert choice_letters(text) == letters


@pytest.mark.parametrize(
    ("spec", "text", "found"),
    [
        ("text", "  a b \n", "a b"), ("first_line", "\n\n one \n two", "one"), ("last_line", "one\ntwo\n\n", "two"),
        ("first_line", " ", None),
        ("last_number", "6 + 1 = 7", "7"), ("choice", "so B", "B"), ({"choice": "AB"}, "The answer is C", None),
        ({"regex": r"Answer: (\w+)"}, "Answer: x. Answer: yes", "yes"), ({"regex": r"\d+"}, "1 22", "22"), ({"regex": "z"}, "a", None),
        ({"regex": r"(a+)+$"}, "a" * 40 + "b", None), ({"after": "####"}, "9*2\n#### 18", "18"), ({"after": "####"}, "18", None),
        ("json", '{"b": 1, "a": 2}', '{"a": 2, "b": 1}'), ("json", "no", None), ({"json": "a.b"}, '{"a": {"b": "x"}}', "x"),
        ({"json": "items.1"}, '{"items": [1, 2]}', "2"), ({"json": "a"}, '{"b": 1}', None),
    ],
)  # fmt: skip
def test_extractors(spec, text, found):
    assert extract(spec, text) == found


def test_extractor_by_a_field():
    spec = {"by": "task", "sum": "last_number", "true": "first_line", "else": {"after": ":"}}
    assert extract(spec, "is 3", fields={"task": "sum"}) == "3"
    assert extract(spec, "a\nb", fields={"task": True}) == "a"
    assert extract(spec, "x: y", fields={}) == "y"
    assert extract({"by": "a.kinds[0]", "sum": "last_number"}, "is 3", fields={"a": {"kinds": ["sum"]}}) == "3"
    assert wants_json({"by": "t", "j": "json"}, {"t": "j"}) and not wants_json({"by": "t", "j": "json"}, {"t": "k"})


@pytest.mark.parametrize("spec", ["nothing", 3, {}, {"regex": "("}, {"after": ""}, {"regex": "a", "after": "b"}, {"by": "t", "x": "wrong"}])
def test_wrong_extractors_are_refused_by_name(spec):
    with pytest.raises(ParamsError, match=r"evaluate\.extract"):
        build_extractor(spec)


@pytest.mark.parametrize(
    ("text", "reasoning", "answer"),
    [
        ("<think>\nfour?</think>\n\nFour", "four?", "Four"), ("<think>never ends", "never ends", ""), ("hm</think>Four", "hm", "Four"),
        ("plain", "", "plain"), ("say <think>x</think>", "", "say <think>x</think>"), ("<thinking>a</thinking>b", "a", "b"),
    ],
)  # fmt: skip
def test_a_leading_reasoning_block_is_split_off(text, reasoning, answer):
    assert split_reasoning(text) == (reasoning, answer)


@pytest.mark.parametrize(
    ("text", "finish", "kind", "value"),
    [
        ('{"a":1}', "stop", "strict", {"a": 1}),
        (" [1, 2]\n", "stop", "strict", [1, 2]),
        (f'{FENCE}\n{{"a":1}}\n{FENCE}', "stop", "fenced", {"a": 1}),
        (f'{FENCE}json\n{{"a":1}}\n{FENCE}', "stop", "fenced", {"a": 1}),
        (f'````json\n{{"a":"{FENCE}"}}\n````', "stop", "fenced", {"a": FENCE}),
        ('~~~\n{"a":1}\n~~~', "stop", "fenced", {"a": 1}),
        (f'{{"code": "{FENCE}py\\nx\\n{FENCE}"}}', "stop", "strict", {"code": f"{FENCE}py\nx\n{FENCE}"}),
        (f'Sure:\n{FENCE}json\n{{"a":1}}\n{FENCE}\nDone.', "stop", "fenced", {"a": 1}),
        ('Here you go: {"a": 1} enjoy', "stop", "repaired", {"a": 1}),
        ('{"a": 1, "b": "x', "length", "cut", {"a": 1, "b": "x"}),
        (f'{FENCE}json\n{{"a": 1, "b', "length", "cut", {"a": 1}),
        ('{"a": 1, "b": "x', "stop", "repaired", {"a": 1, "b": "x"}),
        ('{"a":NaN}', "stop", "repaired", {"a": None}),
        ('{"a":1e999}', "stop", "repaired", {"a": None}),
        ('{"a":1,}', "stop", "repaired", {"a": 1}),
        ('{"a":1,"a":2}', "stop", "repaired", {"a": 2}),
        ("{'a': True}", "stop", "repaired", {"a": True}),
        ('{"a":1}{"b":2}', "stop", "not", None),
        ('{"a":1}\n{"a":1}', "stop", "repaired", {"a": 1}),
        ('"just a string"', "stop", "not", None),
        ("42", "stop", "not", None),
        ("use the { key to open", "stop", "not", None),
        ("See [1] for more", "stop", "not", None),
        ("", "stop", "not", None),
        ("[" * 100_000, "stop", "not", None),
        ("{", "length", "cut", None),
    ],
)
def test_json_by_class(text, finish, kind, value):
    parsed = parse_json(text, finish)
    assert (parsed.kind, parsed.value) == (kind, value)


def test_deep_nesting_never_reaches_the_recursion_limit():
    deep = sys.getrecursionlimit() * 3
    assert parse_json("[" * deep + "]" * deep).kind == "not"
    assert parse_json('{"a":' * deep + "1" + "}" * deep).kind == "not"
