"""Planted patterns are found and named, chance alone is not: on rows of our own with fields, languages and two-language texts."""

import random

import night_tree as nt
import numpy as np
import pytest

from pipeline.report.conditions import Conditions
from pipeline.report.patterns import Condition, Mined, intervals, mine
from pipeline.report.rows import Row

FIELDS = {"task": ["sum", "list", "rewrite", "date", "unit"], "team": ["red", "blue", "green"], "channel": ["app", "web", "mail", "phone"]}


def some_rows(count: int, seed: int) -> list[Row]:
    chance = random.Random(seed)
    rows = []
    for n in range(count):
        lang = chance.choice(["en", "zh"])
        meta = {name: chance.choice(values) for name, values in FIELDS.items()} | {"pages": chance.randint(1, 500)}
        text = nt.question(chance.randrange(35), lang) + chance.choice(["", " Please be brief.", " 谢谢。", " Use a table."])
        rows.append(
            Row(n, text=text, meta=meta, language=lang, bucket=chance.choice([32, 64, 128]), steps=chance.sample(["a", "b", "c"], 1))
        )
    return rows


def mined(rows: list[Row], failed: list[bool]) -> Mined:
    conditions = Conditions()
    for row in rows:
        conditions.add(row)
    return mine(np.array(failed), conditions.index())


def planted(rows: list[Row], seed: int, where, inside: float, outside: float) -> list[bool]:
    chance = random.Random(seed)
    return [chance.random() < (inside if where(row) else outside) for row in rows]


@pytest.mark.parametrize("seed", range(25))
def test_chance_alone_gives_no_pattern(seed):
    rows = some_rows(400, seed)
    found = mined(rows, planted(rows, seed + 1000, lambda row: False, 0, [0.1, 0.3, 0.5, 0.8][seed % 4]))
    assert found.patterns == () and found.silence == "no_pattern" and found.tried > 50


PLANTED = {
    "a field's value": (lambda row: row.meta["task"] == "date", {("field", "task", "date")}),
    "a language": (lambda row: row.language == "zh", {("language", "language", "zh")}),
    "a term of the prompt": (lambda row: "table" in row.text, {("term", "term", "table"), ("term", "term", "use table")}),
    "a Chinese term": (lambda row: "谢谢" in row.text, {("term", "term", "谢谢")}),
    "a length bucket": (lambda row: row.bucket == 128, {("bucket", "prompt_tokens", "≤ 128")}),
    "a cleaning step": (lambda row: row.steps == ["b"], {("step", "step", "b")}),
    "the top quarter of a number": (lambda row: row.meta["pages"] > 375, set()),
}


@pytest.mark.parametrize("name", PLANTED)
@pytest.mark.parametrize("seed", range(3))
def test_one_planted_condition_is_the_first_pattern(name, seed):
    where, names = PLANTED[name]
    rows = some_rows(600, seed)
    found = mined(rows, planted(rows, seed, where, 0.6, 0.2))
    first = found.patterns[0]
    assert {(c.kind, c.name, c.value) for c in first.conditions} & names or (not names and "pages" in {c.name for c in first.conditions})
    assert first.rate > 0.4 > first.rest_rate and first.p < 0.01 and first.lift > 1.25


@pytest.mark.parametrize("seed", range(5))
def test_a_planted_pair_is_named_as_a_pair(seed):
    rows = some_rows(1500, seed)
    found = mined(rows, planted(rows, seed, lambda row: row.meta["task"] == "sum" and row.language == "zh", 0.8, 0.15))
    assert {(c.name, c.value) for c in found.patterns[0].conditions} == {("task", "sum"), ("language", "zh")}


def test_a_pattern_is_told_once_not_once_per_correlated_field():
    rows = some_rows(800, 4)
    for row in rows:
        row.meta["copy_of_task"] = row.meta["task"].upper()
    found = mined(rows, planted(rows, 4, lambda row: row.meta["task"] == "unit", 0.7, 0.1))
    assert len(found.patterns) == 1


def test_few_failures_or_nothing_but_failures_say_nothing():
    rows = some_rows(100, 0)
    assert mined(rows, [False] * 100).silence == "few_failures"
    assert mined(rows, [True] * 100).silence == "nearly_all_fail"
    assert mined(rows[:10], [True] * 10).silence == "few_rows"
    assert mined([], []).silence == "few_rows"


def test_conditions_hold_no_unbounded_fields():
    conditions = Conditions()
    for n in range(500):
        conditions.add(
            Row(n, text="same words", meta={"serial": f"s{n}", "long": "x" * 200, "tags": ["a", "b", "a"], "deep": {"a": 1}, "score": n})
        )
    index = conditions.index()
    assert {c.name for c in index if c.kind == "field"} == {"tags", "score"}
    assert len(index[Condition("field", "tags", "a")]) == 500
    assert sorted(len(members) for c, members in index.items() if c.name == "score") == [124, 125, 125, 126]


def test_wilson_intervals_hold_the_share_and_stay_within_bounds():
    (low, high), (zero, _), (_, one) = intervals([3, 0, 9], [10, 8, 9])
    assert round(low, 3) == 0.108 and round(high, 3) == 0.603
    assert zero == 0.0 and one == 1.0
