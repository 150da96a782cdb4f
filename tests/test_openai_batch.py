"""OpenAI-batch answers, checked with the official client's own types."""

import json
import math

import pytest
from openai.types.chat import ChatCompletion

from pipeline.tables.openai_batch import BatchAnswer, Choice, TokenLogprob, write_openai_batch

ANSWERS = [
    BatchAnswer("c1", 0, "m", 5, [Choice("你好", "stop", 3), Choice("", "length", 1)]),
    BatchAnswer("c2", 1, "m", error=("missing_messages", "body.messages is missing or null")),
    BatchAnswer(
        "c3", 2, "m", 7, [Choice("hi", "stop", 1, [TokenLogprob("hi", -0.5, [("hi", -0.5), ("é", -math.inf)])])],
    ),
]  # fmt: skip


@pytest.fixture
def written(tmp_path):
    counts = write_openai_batch(tmp_path / "openai", ANSWERS)
    assert counts == {"output": 2, "errors": 1}
    read = {name: (tmp_path / "openai" / f"{name}.jsonl").read_text("utf-8").splitlines() for name in counts}
    return {name: [json.loads(line) for line in lines] for name, lines in read.items()}


def test_answers_are_chat_completions_of_the_official_client(written):
    first, second = written["output"]
    assert [line["custom_id"] for line in written["output"]] == ["c1", "c3"]
    completion = ChatCompletion.model_validate(first["response"]["body"], strict=True)
    assert [choice.message.content for choice in completion.choices] == ["你好", ""]
    assert [choice.finish_reason for choice in completion.choices] == ["stop", "length"]
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens, completion.usage.total_tokens) == (5, 4, 9)
    token = ChatCompletion.model_validate(second["response"]["body"], strict=True).choices[0].logprobs.content[0]
    assert (token.token, token.logprob, token.bytes) == ("hi", -0.5, [104, 105])
    assert (token.top_logprobs[1].bytes, token.top_logprobs[1].logprob) == ([195, 169], -9999.0)


def test_rows_without_an_answer_are_errors_with_code_and_message(written):
    (line,) = written["errors"]
    assert (line["custom_id"], line["response"]) == ("c2", None)
    assert line["error"] == {"code": "missing_messages", "message": "body.messages is missing or null"}


def test_ids_differ_between_rows_and_never_between_runs(tmp_path, written):
    ids = [line["id"] for lines in written.values() for line in lines]
    assert len(set(ids)) == 3
    write_openai_batch(tmp_path / "again", ANSWERS)
    assert (tmp_path / "again/output.jsonl").read_bytes() == (tmp_path / "openai/output.jsonl").read_bytes()
