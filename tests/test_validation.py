"""Which fields mean what, and which records cannot be rows."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.params import DataParams
from pipeline.tables.duplicates import SeenIds
from pipeline.tables.fields import MISSING, getter
from pipeline.tables.json_text import parse
from pipeline.tables.records import BadRow, Record
from pipeline.tables.validation import Checked, FileSpec, Validator


def check(*rows: object, control: bool = False, kind: str = "jsonl", **params: object) -> Checked:
    """Rows given as Python values (through strict JSON) or as JSON text."""
    validator = Validator(DataParams(**params), FileSpec("f", control, kind))
    texts = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    return validator.check(Record(number, parse(text.encode())) for number, text in enumerate(texts, 1))


def one(row: object, **params: object) -> dict:
    (found,) = check(row, **params).rows.to_pylist()
    return found


def reason(row: object, **params: object) -> str:
    ((_, _, _, bad),) = check(row, **params).rejects
    assert bad.detail
    return bad.reason


@pytest.mark.parametrize(
    ("given_id", "expected"),
    [("9007199254740993", "9007199254740993"), ("18446744073709551617", "18446744073709551617"), ('"00012"', "00012"), ("1.10", "1.10"),
     ("null", "f:1"), ('""', "f:1"), ('" a"', " a"), ("-0", "0")],
)  # fmt: skip
def test_ids_are_text_digit_for_digit(given_id, expected):
    assert one(f'{{"id": {given_id}, "text": "x"}}')["id"] == expected


@pytest.mark.parametrize("value", ["true", "[1]", "{}"])
def test_what_is_no_id_is_refused(value):
    assert reason(f'{{"id": {value}, "text": "x"}}') == "bad_id"


@pytest.mark.parametrize(
    ("value", "expected"),
    [('"a"', "a"), ("5", "5"), ("1.50", "1.50"), ('["one.", "two."]', "one. two."), ('" x "', " x ")],
)
def test_text_may_be_text_a_number_or_a_list_of_them(value, expected):
    assert one(f'{{"text": {value}}}')["text"] == expected


@pytest.mark.parametrize(
    ("row", "expected"),
    [({}, "missing_text"), ({"text": None}, "missing_text"), ({"text": " \u3000\n"}, "empty_text"), ({"text": {}}, "text_not_text"),
     ({"text": True}, "text_not_text"), ([1], "not_an_object"), (5, "not_an_object"), ({"text": []}, "text_not_text"),
     ({"text": [None]}, "text_not_text")],
)  # fmt: skip
def test_rows_without_text_are_refused(row, expected):
    assert reason(row) == expected


def test_fields_are_found_by_name_before_path_and_the_rest_is_kept():
    row = {"q": {"a": [{"t": "deep"}, {"t": "er"}]}, "q.a": "flat", "r": ["", "x", None], "n": 1}
    assert one(row, text_field="q.a[0].t")["text"] == "deep"
    assert one(row, text_field="q.a")["text"] == "flat"
    found = one(row, text_field="q.a[].t", reference_field="r")
    assert (found["text"], found["reference"]) == ("deep er", '["x"]')
    assert json.loads(found["meta"]) == {"q": row["q"], "q.a": "flat", "n": 1}


@pytest.mark.parametrize("path", ["a.b", "a[0]", "a[].b", "a[1].b", "a.b.c"])
def test_a_path_that_leads_nowhere_is_missing(path):
    assert getter(path)({"x": 1}) is MISSING
    assert getter(path)({"a": 1}) is MISSING


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a", '["a"]'),
        (["a", "b"], '["a","b"]'),
        ("", None),
        ([], None),
        (["", None], None),
        (None, None),
        (18, '["18"]'),
        ({"k": 1}, '["{\\"k\\":1}"]'),
    ],
)
def test_references_are_a_list_of_texts_or_nothing(value, expected):
    assert one({"text": "x", "reference": value})["reference"] == expected


def test_messages_win_over_text_and_must_be_turns():
    turns = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "hi "}, {"type": "text", "text": "there"}]},
    ]
    found = one({"messages": turns, "text": "kept"})
    assert json.loads(found["messages"])[1] == {"role": "user", "content": "hi there"}
    assert (found["text"], found["meta"]) == (None, '{"text":"kept"}')
    assert one({"messages": None, "text": "kept"})["text"] == "kept"
    assert reason({"messages": []}) == "bad_messages"
    assert reason({"messages": [{"role": "user"}]}) == "bad_messages"
    assert reason({"messages": [{"role": "user", "content": " "}]}) == "empty_text"
    assert reason({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}) == "unsupported_content"
    assert reason({"messages": [{"role": "assistant", "content": "x", "tool_calls": [1]}]}) == "unsupported_content"


def test_only_listed_overrides_change_generation():
    row = {"text": "x", "temperature": 1, "seed": -1, "stop": "a", "top_p": None}
    assert one(row)["overrides"] == "{}"
    found = one(row, overrides=("temperature", "seed", "stop", "top_p"))
    assert json.loads(found["overrides"]) == {"temperature": 1.0, "seed": 2**63 - 1, "stop": ["a"]}
    assert found["meta"] == "{}"
    text = {"text": "x", "temperature": "0.5", "stop": '["a","b"]', "max_new_tokens": "", "system": "5"}
    found = one(text, kind="csv", overrides=("temperature", "stop", "max_new_tokens", "system"))
    assert json.loads(found["overrides"]) == {"temperature": 0.5, "stop": ["a", "b"], "system": "5"}


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", "0.7"), ("temperature", -1), ("top_p", 1.5), ("max_new_tokens", 0), ("max_new_tokens", True), ("top_k", 1.5),
     ("stop", [""]), ("system", 5), ("json_schema", [])],
)  # fmt: skip
def test_wrong_overrides_cost_the_row(name, value):
    assert reason({"text": "x", name: value}, overrides=(name,)) == "bad_override"


def test_answers_made_elsewhere_need_no_text():
    found = one({"answer": "", "reference": "r"}, completion_field="answer")
    assert (found["text"], found["completion"]) == (None, "")
    assert one({"answer": "a", "text": "  "}, completion_field="answer")["text"] == "  "
    assert reason({"text": "x"}, completion_field="answer") == "missing_completion"


def test_numbers_in_other_fields_keep_their_digits():
    meta = one('{"text": "x", "a": 18446744073709551617, "b": 1.10, "c": {"d": [9007199254740993, 1e2]}}')["meta"]
    assert meta == '{"a":18446744073709551617,"b":1.10,"c":{"d":[9007199254740993,1e2]}}'
    assert reason('{"text": "x", "a": 1e400}') == "number_out_of_range"


def test_other_fields_are_equal_in_any_order():
    assert one('{"text":"x","b":1,"a":2}')["meta"] == one('{"a":2,"b":1,"text":"x"}')["meta"]


def openai(**body: object) -> dict:
    messages = [{"role": "user", "content": "hi"}]
    return {"custom_id": "c", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "m", "messages": messages, **body}}


def test_openai_requests_set_their_own_generation_values():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    found = one(
        openai(
            max_tokens=8, temperature=0.5, top_p=0.9, seed=3, stop=["x"], n=2, logprobs=True, top_logprobs=4, user="u", stream=False,
            response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}, presence_penalty=0.5,
        ),
        kind="openai-batch",
    )  # fmt: skip
    assert json.loads(found["overrides"]) == {
        "max_new_tokens": 8, "temperature": 0.5, "top_p": 0.9, "seed": 3, "stop": ["x"], "samples": 2, "logprobs": 4, "json_schema": schema,
        "presence_penalty": 0.5,
    }  # fmt: skip
    assert (found["id"], json.loads(found["meta"])) == ("c", {"model": "m"})


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (openai(tools=[{"type": "function"}]), "unsupported_parameter"),
        (openai(stream=True), "unsupported_parameter"),
        (openai(new_thing=1), "unsupported_parameter"),
        (openai(response_format={"type": "grammar"}), "unsupported_parameter"),
        (openai(temperature="hot"), "bad_override"),
        (openai(top_logprobs=3), "bad_override"),
        (openai(messages=None), "missing_messages"),
        ({"custom_id": "c", "url": "/v1/embeddings", "body": {}}, "unsupported_request"),
        ({"custom_id": "c"}, "unsupported_request"),
        ({"body": {"messages": [{"role": "user", "content": "hi"}]}}, "missing_id"),
    ],
)
def test_what_an_openai_request_may_not_ask_costs_the_row(row, expected):
    ((_, _, row_id, bad),) = check(row, kind="openai-batch").rejects
    assert (bad.reason, row_id) == (expected, row.get("custom_id"))


@given(ids=st.lists(st.integers(0, 20), max_size=60), cuts=st.lists(st.integers(0, 60), max_size=4))
def test_repeats_are_found_whatever_batches_ids_come_in(ids, cuts):
    seen, expected, found = {}, {}, {}
    digests = [key.to_bytes(16, "little") + (key % 3 * place % 2).to_bytes(16, "little") for place, key in enumerate(ids)]
    for place, key in enumerate(ids):
        if key in seen:
            expected[place] = (seen[key], digests[seen[key]] == digests[place])
        else:
            seen[key] = place
    table, edges = SeenIds(), sorted({0, len(ids), *(cut for cut in cuts if cut < len(ids))})
    for start, stop in itertools.pairwise(edges):
        repeats = table.add(b"".join(digests[start:stop]), np.arange(start, stop))
        for index, first, same in zip(repeats.rows, repeats.first_place, repeats.identical):
            found[start + int(index)] = (int(first), bool(same))
    assert found == expected


LEAF = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8)
NAMES = st.sampled_from(["id", "text", "messages", "role", "content", "reference", "custom_id", "body"])
JSON = st.recursive(LEAF, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4), max_leaves=12)


@given(rows=st.lists(JSON, max_size=5), as_openai=st.booleans())
def test_every_record_ends_as_row_or_reject(rows, as_openai):
    done = check(*[json.dumps(row) for row in rows], kind="openai-batch" if as_openai else "jsonl", overrides=("system", "stop"))
    assert sorted([*done.places, *(place for place, *_ in done.rejects)]) == list(range(len(rows)))
    assert len(done.digests) == 32 * done.rows.num_rows


def test_a_fault_found_while_reading_is_handed_on():
    done = Validator(DataParams(), FileSpec("f")).check([Record(4, BadRow("too_deep", "why").bad)])
    assert done.rejects == [(0, 4, None, ("too_deep", "why"))]


def test_one_field_may_serve_twice():
    found = one({"q": "x", "n": 1}, id_field="q", text_field="q", reference_field="q")
    assert (found["id"], found["text"], found["reference"], found["meta"]) == ("x", "x", '["x"]', '{"n":1}')
