"""Duplicates: exact and near, in every script, within their group, the first row staying; memory is not rows times Python objects."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from text_rows import validated

from pipeline.core.params import PreprocessParams
from pipeline.text import dedup, signatures
from pipeline.text.preprocess import Preprocessor

ENGLISH = "The baker opens the window before seven and the river runs past the mill while a green lamp stands beside the quiet engine."
CHINESE = "今天早上面包师在七点以前打开了窗户，河水流过磨坊，一盏绿色的灯放在安静的机器旁边，孩子们在桥下数石头。"
THAI = "เช้านี้คนทำขนมปังเปิดหน้าต่างก่อนเจ็ดโมง แม่น้ำไหลผ่านโรงสี และมีโคมไฟสีเขียวตั้งอยู่ข้างเครื่องยนต์ที่เงียบสงบ"
WORDS = [*ENGLISH.lower().strip(".").split(), "stone", "bridge", "paper", "boat", "moon", "bread", "seven", "count", "door", "field"]


def find(rows, kind="near", **params):
    """Ordinals kept, and {removed ordinal: (reason, ordinal that stays)}."""
    clean, rejected = Preprocessor(PreprocessParams(dedup=kind, steps=(), min_chars=0, **params)).apply(validated(rows))
    removed = {r["ordinal"]: (r["reason"], int("".join(c for c in r["detail"] if c.isdecimal()))) for r in rejected.to_pylist()}
    return clean["ordinal"].to_pylist(), removed


@pytest.mark.parametrize("text", [ENGLISH, CHINESE, THAI])
def test_a_small_change_makes_a_near_duplicate_and_a_large_one_does_not(text):
    small, case, large = text[:30] + "x" + text[31:], text.upper(), text[: len(text) // 2] + text[: len(text) // 2][::-1]
    kept, removed = find([text, small, text, large, case])
    assert kept == [0, 3]
    assert removed == {1: ("duplicate_near", 0), 2: ("duplicate_exact", 0), 4: ("duplicate_near" if case != text else "duplicate_exact", 0)}
    assert find([text, small, text], "exact") == ([0, 1], {2: ("duplicate_exact", 0)})


def test_chinese_rows_are_compared_by_shorter_shingles():
    edited = CHINESE.replace("绿色", "红色").replace("安静", "嘈杂")
    assert find([CHINESE, edited], dedup_threshold=0.7)[1] == {1: ("duplicate_near", 0)}


def test_rows_that_differ_in_digits_stay_unless_asked_otherwise():
    rows = [f"{ENGLISH} What is {a} + {b}?" for a, b in [(3, 5), (3, 6), (35, 1), (3, 51), (13, 5)]]
    assert find(rows)[0] == [0, 1, 2, 3, 4]
    assert find(rows, dedup_keep_digits=False)[0] == [0]
    wide = [f"{CHINESE}一共有{n}块石头？" for n in ("３", "４")]
    assert find(wide)[0] == [0, 1]


def test_short_rows_are_compared_exactly():
    assert find(["hello world", "hello world", "hello world!", "你好", "你好", "你好！", ""])[1] == {
        1: ("duplicate_exact", 0), 4: ("duplicate_exact", 3),
    }  # fmt: skip


def test_control_rows_and_rows_with_other_generation_values_are_apart():
    rows = [
        {"text": ENGLISH}, {"text": ENGLISH, "control": True}, {"text": ENGLISH, "control": True},
        {"text": ENGLISH, "overrides": {"temperature": 1}}, {"text": ENGLISH + "!", "control": True},
    ]  # fmt: skip
    kept, removed = find(rows)
    assert kept == [0, 1, 3]
    assert removed == {2: ("duplicate_exact", 1), 4: ("duplicate_near", 1)}


def test_conversations_count_with_their_roles_and_order():
    one = [{"role": "user", "content": ENGLISH}]
    other = [{"role": "user", "content": "a"}, {"role": "assistant", "content": ENGLISH}, {"role": "user", "content": "b"}]
    assert find([one, ENGLISH, one, other])[1] == {2: ("duplicate_exact", 0)}


def test_what_is_removed_is_like_a_row_that_stays():
    """A chain in which each row is like the one before it but not like the first."""
    rows = [" ".join(WORDS[i : i + 20]) for i in range(0, 12)]
    kept, removed = find(rows, dedup_threshold=0.75)
    assert 1 < len(kept) < len(rows)
    assert all(first in kept for _, first in removed.values())
    prints = [shingles(row) for row in rows]
    assert all(jaccard(prints[lost], prints[first]) > 0.6 for lost, (_, first) in removed.items())


def shingles(text, n=5):
    text = "".join(text.lower().split())
    return {text[i : i + n] for i in range(len(text) - n + 1)}


def jaccard(a, b):
    return len(a & b) / len(a | b)


def test_near_duplicates_are_those_that_a_full_comparison_finds():
    rng = random.Random(1)
    base = [" ".join(rng.choices(WORDS, k=30)) for _ in range(60)]
    rows = base + [row[:k] + "zz" + row[k + 2 :] for row in base for k in (rng.randrange(len(row)),)]
    kept, removed = find(rows)
    prints = [shingles(row) for row in rows]
    pairs = [(i, j) for i in range(len(rows)) for j in range(i) if jaccard(prints[i], prints[j]) > 0.88]
    assert len(pairs) > 50
    assert sum(i in removed for i, _ in pairs) >= 0.95 * len(pairs)
    assert all(jaccard(prints[lost], prints[first]) > 0.65 for lost, (_, first) in removed.items())
    assert set(range(60)) <= set(kept)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.booleans()), max_size=25))
def test_removing_duplicates_twice_removes_nothing_more(picks):
    rows = [{"text": " ".join(WORDS[a : a + 15]) + "!" * b, "control": c} for a, b, c in picks]
    kept, removed = find(rows)
    assert sorted([*kept, *removed]) == list(range(len(rows)))
    assert all(first in kept and first < lost for lost, (_, first) in removed.items())
    assert find([rows[i] for i in kept])[1] == {}


def test_many_copies_of_one_row_are_found_in_one_pass(monkeypatch):
    rounds = []
    lowest = dedup.Deduplicator._lowest_like
    monkeypatch.setattr(dedup.Deduplicator, "_lowest_like", lambda self, *rest: rounds.append(1) or lowest(self, *rest))
    kept, removed = find([ENGLISH + "!" * (i % 40) for i in range(3000)])
    assert kept == [0]
    assert len(removed) == 2999
    assert len(rounds) == 2


def test_fingerprints_are_compact_and_do_not_depend_on_the_batch(monkeypatch):
    table = validated([f"{ENGLISH} {word}" for word in WORDS])
    preprocessor = Preprocessor(PreprocessParams(dedup="near"))
    clean, _ = preprocessor.clean(table)
    whole = preprocessor.fingerprints(clean, table)
    rows = len(WORDS)
    monkeypatch.setattr(signatures, "SLICE_CHARS", 300)
    sliced = preprocessor.fingerprints(clean, table)
    parts = [preprocessor.fingerprints(clean.slice(i, 1), table.slice(i, 1)) for i in range(rows)]
    for name, axis in (("exact", 0), ("near", 0), ("signatures", 0), ("bands", 1)):
        joined = np.concatenate([getattr(part, name) for part in parts], axis=axis)
        assert (joined == getattr(whole, name)).all()
        assert (getattr(sliced, name) == getattr(whole, name)).all()
    assert sum(getattr(whole, name).nbytes for name in ("exact", "near", "signatures", "bands", "ordinals")) <= 420 * rows
