"""OpenAI-batch answers, checked with the official client's own types."""

import json
import math

import pytest
from chains import run_chain
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


SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"], "additionalProperties": False}
BODIES = [
    {"max_completion_tokens": 5},
    {"max_tokens": 4, "n": 3, "temperature": 1.0, "seed": 7},
    {"temperature": 0.8, "top_p": 0.9, "seed": 1, "logprobs": True, "top_logprobs": 2},
    {"stop": ["a", "e"]},
    {"max_tokens": 40, "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}},
    {"tools": [{"type": "function"}]},
]


def test_a_job_of_fifty_rows_comes_back_as_the_service_would_answer_it(tmp_path, tiny_checkpoint):
    lines = []
    for number in range(50):
        body = {"model": "any", "messages": [{"role": "user", "content": f"Say {number}"}], **BODIES[number % len(BODIES)]}
        lines.append({"custom_id": f"c{number}", "method": "POST", "url": "/v1/chat/completions", "body": body})
    file = tmp_path / "job.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert run_chain(file, tmp_path / "out", tiny_checkpoint, "data.format=openai-batch", "data.control=[]") == 0

    output, errors = (
        [json.loads(line) for line in (tmp_path / f"out/data/results/openai/{name}.jsonl").read_text("utf-8").splitlines()]
        for name in ("output", "errors")
    )
    refused = [f"c{number}" for number in range(50) if "tools" in BODIES[number % len(BODIES)]]
    assert [line["custom_id"] for line in errors] == refused
    assert {(line["error"]["code"], line["error"]["message"]) for line in errors} == {
        ("unsupported_parameter", "body.tools is not supported here")
    }
    assert [line["custom_id"] for line in output] == [line["custom_id"] for line in lines if line["custom_id"] not in refused]
    for line in output:
        body = BODIES[int(line["custom_id"][1:]) % len(BODIES)]
        answer = ChatCompletion.model_validate(line["response"]["body"], strict=True)
        assert line["response"]["status_code"] == 200 and answer.model == str(tiny_checkpoint)
        assert len(answer.choices) == body.get("n", 1)
        assert answer.usage.completion_tokens <= body.get("max_tokens", body.get("max_completion_tokens", 8)) * len(answer.choices)
        for choice in answer.choices:
            assert not [word for word in body.get("stop", ()) if word in choice.message.content]
            assert (choice.logprobs is not None) == ("logprobs" in body)
            if choice.logprobs:
                assert all(len(token.top_logprobs) == 2 for token in choice.logprobs.content)
            if "response_format" in body:
                assert json.loads(choice.message.content) in ({"a": "x"}, {"a": "y"})
