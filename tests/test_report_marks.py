"""Shading by token and differences by word: every mark stands where it should, and the text is never changed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.report.marks import Segment, closest, differences, shaded
from pipeline.report.page import duration, number, percent, visible


def joined(segments, *kinds):
    return "".join(segment.text for segment in segments if segment.kind in kinds)


def test_unlikely_tokens_are_marked_at_their_place():
    pieces = [b"The", b" capital", b" is", b" Lyon", b"."]
    segments = shaded("The capital is Lyon.", pieces, np.array([-0.1, -0.2, -0.1, -4.0, -0.1]))
    assert segments == [Segment("The capital is"), Segment(" Lyon", "p3"), Segment(".")]


def test_a_character_of_several_tokens_is_marked_whole_by_its_least_likely_one():
    raw = "好😀吗".encode()
    pieces = [raw[:3], raw[3:5], raw[5:6], raw[6:7], raw[7:]]
    assert shaded("好😀吗", pieces, np.array([-0.1, -0.1, -7.0, -0.1, -0.1])) == [Segment("好"), Segment("😀", "p4"), Segment("吗")]


def test_text_cut_at_a_stop_string_and_text_that_does_not_meet_the_tokens():
    assert shaded("yes", [b"yes", b"\n\nQ", b":"], np.array([-1.5, -9.0, -9.0])) == [Segment("yes", "p1")]
    assert shaded("ye", [b"yes\n"], np.array([-3.0])) == [Segment("ye", "p2")]
    assert shaded("no", [b"yes"], np.array([-9.0])) == [Segment("no")]
    assert shaded("hi there", [b" hi", b" there"], np.array([0.0, -2.5])) == [Segment("hi"), Segment(" there", "p2")]
    assert shaded("", [], np.array([])) == []


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=40), st.lists(st.integers(1, 6), min_size=1, max_size=80), st.integers(0, 5))
def test_shading_never_changes_the_text(answer, sizes, beyond):
    raw = answer.encode() + b"x" * beyond
    pieces, at = [], 0
    for size in sizes:
        pieces.append(raw[at : at + size])
        at += size
    logprobs = -np.arange(len(pieces), dtype=float)
    assert "".join(segment.text for segment in shaded(answer, pieces, logprobs)) == answer


def test_differences_are_by_word_and_by_chinese_character():
    segments = differences("The bridge is old and green.", "The bridge is new and green.")
    assert joined(segments, "", "gone") == "The bridge is old and green." and joined(segments, "gone") == "old"
    assert joined(segments, "added") == "new"
    segments = differences("港口在退潮时很安静", "港口在涨潮时很安静")
    assert joined(segments, "gone") == "退" and joined(segments, "added") == "涨"


def test_texts_that_share_nothing_or_everything_are_left_plain():
    assert differences("quite another thing", "港口") == [Segment("quite another thing")]
    assert differences("same", "same") == [Segment("same")]
    assert differences("a " * 2000, "b") == [Segment("a " * 2000)]
    assert closest(["red", "green house"], "a green house") == "green house"


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=30), st.text(max_size=30))
def test_differences_hold_both_texts(reference, answer):
    segments = differences(reference, answer)
    assert joined(segments, "", "gone") == reference
    if len(segments) > 1:
        assert joined(segments, "", "added") == answer


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0, "0"), (0.0, "0"), (1234567, "1,234,567"), (0.12345, "0.123"), (12.345, "12.35"), (123.45, "123.5"), (1e-5, "1.0e-05"),
     (-2.5, "-2.5"), (45678.9, "45,679"), (True, "True"), (1.0, "1")],
)  # fmt: skip
def test_numbers_for_people(value, text):
    assert number(value) == text


def test_stretches_of_time():
    assert [duration(seconds) for seconds in (0.4, 66.78, 547.8, 7500, None)] == ["0.4 s", "66.78 s", "9 min 8 s", "2 h 5 min", "– s"]


def test_shares_and_hidden_marks():
    assert [percent(share) for share in (None, 0, 1, 0.5, 0.055, 0.999, 0.0004)] == [
        "–",
        "0 %",
        "100 %",
        "50 %",
        "5.5 %",
        "99.9 %",
        "< 0.1 %",
    ]
    assert visible("a\u202eb\u200bc\x07d") == "a[U+202E Right-To-Left Override]b[U+200B Zero Width Space]c[U+0007]d"
    assert visible("x" * 50, 10) == "x" * 10 + " … [+40]"
    assert visible(None) == ""
