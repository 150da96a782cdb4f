"""Whatever an answer says: no exception, no NaN, similarity of a text with itself is full, extraction never invents."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.params import EvaluateParams
from pipeline.evaluation import overlap, translation
from pipeline.evaluation.answer import Answer
from pipeline.evaluation.extract import EXTRACTORS, build_extractor, split_reasoning
from pipeline.evaluation.metrics import choose
from pipeline.evaluation.numbers import find_numbers
from pipeline.evaluation.sensitive import WordList

OPTIONS = {"regex": r"\d+", "after": ":", "json": "a.0"}
PIECES = [
    "\n",
    "```",
    "{",
    "}",
    '"',
    ":",
    ",",
    "答案",
    "是",
    "A",
    "1",
    "一",
    "百",
    "万",
    "-",
    "/",
    ".",
    "e",
    "%",
    "<think>",
    "</think>",
    "１",
    "\u200b",
    "é",
    "ไ",
]
TEXT = st.one_of(st.text(max_size=60), st.lists(st.sampled_from(PIECES), max_size=40).map("".join))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(text=TEXT, reference=TEXT, finish=st.sampled_from(["stop", "length"]))
def test_metrics_are_finite_or_silent(text, reference, finish):
    answer = Answer(text, text, [reference] if reference.strip() else [], prompt=reference, finish_reason=finish, wants_json=True)
    for metric in choose(EvaluateParams()):
        value = metric.value(answer)
        assert value is None or math.isfinite(value), metric.name
        if (
            metric.name in ("exact", "token_f1", "rouge_l", "edit_similarity", "bleu", "chrf", "repetition", "loop_share")
            and value is not None
        ):
            assert -1e-9 <= value <= (100 if metric.name in ("bleu", "chrf") else 1) + 1e-9, metric.name


@settings(max_examples=60, deadline=None, derandomize=True)
@given(text=TEXT)
def test_a_text_is_wholly_like_itself(text):
    if not text.strip():
        return
    same = Answer(text, text, [text])
    for score in (overlap.exact, overlap.contains, overlap.token_f1, overlap.rouge_l, overlap.edit_similarity):
        assert score(same) == pytest.approx(1), score
    for score in (translation.bleu, translation.chrf):
        assert score(same) == pytest.approx(100), score


@settings(max_examples=60, deadline=None, derandomize=True)
@given(text=TEXT, finish=st.sampled_from(["stop", "length"]))
def test_extractors_never_fail_and_never_invent(text, finish):
    reasoning, rest = split_reasoning(text)
    assert reasoning in text and rest in text
    for name in EXTRACTORS:
        found = build_extractor({name: OPTIONS[name]} if name in OPTIONS else name)({})(text, finish)
        assert found is None or isinstance(found, str)
        if name in ("text", "first_line", "last_line", "regex", "after") and found:
            assert found in text
    for number in find_numbers(text):
        assert 0 <= number.start < number.end <= len(text)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(text=TEXT)
def test_spans_of_sensitive_words_lie_in_the_text(text):
    for hit in WordList("a1\n答案\n百万\né").find(text):
        assert 0 <= hit.start < hit.end <= len(text)
