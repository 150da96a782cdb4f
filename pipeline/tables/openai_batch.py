"""OpenAI-batch files, in and out: chat completions, one request per line.

What a request may hold is checked here; what is not supported costs the row, with a reason that says so.
Format: https://platform.openai.com/docs/guides/batch
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from pipeline.tables.records import BadRow

URL = "/v1/chat/completions"
IGNORED = {"model", "messages", "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"}
# request field: generation value
PASSED = {
    "temperature": "temperature", "top_p": "top_p", "seed": "seed", "stop": "stop", "n": "samples",
    "presence_penalty": "presence_penalty", "frequency_penalty": "frequency_penalty",
}  # fmt: skip
HANDLED = {"max_tokens", "max_completion_tokens", "logprobs", "top_logprobs", "response_format"}
OFF = {"stream": (False,), "tools": ([],), "logit_bias": ({},), "modalities": (["text"],), "functions": ([],),
       "parallel_tool_calls": (True, False), "tool_choice": ("none", "auto")}  # fmt: skip


def unpack_request(line: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A request line as (messages and meta fields; generation values). Raises BadRow."""
    if line.get("method", "POST") != "POST" or line.get("url", URL) != URL:
        raise BadRow("unsupported_request", f"only POST {URL} is supported, got {line.get('method')} {line.get('url')}")
    body = line.get("body")
    if not isinstance(body, dict):
        raise BadRow("unsupported_request", "the line has no body object; an OpenAI-batch line holds custom_id, method, url and body")
    for name, value in body.items():
        if name not in IGNORED and name not in PASSED and name not in HANDLED and value is not None and value not in OFF.get(name, ()):
            raise BadRow("unsupported_parameter", f"body.{name} is not supported here")
    row = {"messages": body.get("messages"), "model": body.get("model")}
    if isinstance(body.get("metadata"), dict):
        row["metadata"] = body["metadata"]
    return row, generation_values(body)


def generation_values(body: dict[str, Any]) -> dict[str, Any]:
    """Generation values of a request under the names of params.generate, not yet checked."""
    values = {ours: body[theirs] for theirs, ours in PASSED.items() if body.get(theirs) is not None}
    limits = [body[name] for name in ("max_completion_tokens", "max_tokens") if body.get(name) is not None]
    if limits:
        values["max_new_tokens"] = limits[0]
    if body.get("logprobs") not in (None, False):
        if body["logprobs"] is not True:
            raise BadRow("bad_override", "logprobs: must be true or false")
        values["logprobs"] = body.get("top_logprobs") or 0
    elif body.get("top_logprobs"):
        raise BadRow("bad_override", "top_logprobs: needs logprobs: true")
    if (schema := _schema(body.get("response_format"))) is not None:
        values["json_schema"] = schema
    return values


def _schema(response_format: Any) -> dict[str, Any] | None:
    if response_format is None or response_format == {"type": "text"}:
        return None
    kind = response_format.get("type") if isinstance(response_format, dict) else None
    if kind == "json_object":
        return {"type": "object"}
    schema = response_format.get("json_schema", {}).get("schema") if kind == "json_schema" else None
    if not isinstance(schema, dict):
        raise BadRow("unsupported_parameter", f"body.response_format {kind!r}: only text, json_object and json_schema with a schema")
    return schema


class TokenLogprob(NamedTuple):
    """One generated token with its natural log probability and the alternatives asked for, likeliest first."""

    token: str
    logprob: float
    top: Sequence[tuple[str, float]] = ()


class Choice(NamedTuple):
    """One sample's answer. logprobs: None unless the request asked for them."""

    text: str
    finish_reason: str
    completion_tokens: int
    logprobs: Sequence[TokenLogprob] | None = None


class BatchAnswer(NamedTuple):
    """What became of one request: choices in sample order, or an error (code, message)."""

    id: str | None
    ordinal: int
    model: str
    prompt_tokens: int = 0
    choices: Sequence[Choice] = ()
    error: tuple[str, str] | None = None


def write_openai_batch(folder: Path, answers: Iterable[BatchAnswer]) -> dict[str, int]:
    """Write output.jsonl and errors.jsonl below `folder` in the order given; returns the lines in each.

    The service's clock times and random ids are replaced by 0 and by digests: the same answers give the same bytes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lines = {"output": 0, "errors": 0}
    with open(folder / "output.jsonl", "wb") as output, open(folder / "errors.jsonl", "wb") as errors:
        for answer in answers:
            name, file = ("errors", errors) if answer.error else ("output", output)
            file.write(orjson.dumps(response_line(answer)) + b"\n")
            lines[name] += 1
    return lines


def response_line(answer: BatchAnswer) -> dict[str, Any]:
    """One line of an output or error file as plain data."""
    key = hashlib.sha256(orjson.dumps([answer.ordinal, answer.id])).hexdigest()
    line: dict[str, Any] = {"id": f"batch_req_{key[:32]}", "custom_id": answer.id, "response": None, "error": None}
    if answer.error:
        return line | {"error": {"code": answer.error[0], "message": answer.error[1]}}
    completed = sum(choice.completion_tokens for choice in answer.choices)
    usage = {"prompt_tokens": answer.prompt_tokens, "completion_tokens": completed, "total_tokens": answer.prompt_tokens + completed}
    body = {
        "id": f"chatcmpl-{key[:32]}", "object": "chat.completion", "created": 0, "model": answer.model,
        "choices": [_choice(index, choice) for index, choice in enumerate(answer.choices)], "usage": usage,
    }  # fmt: skip
    return line | {"response": {"status_code": 200, "request_id": key[:32], "body": body}}


def _choice(index: int, choice: Choice) -> dict[str, Any]:
    tokens = None if choice.logprobs is None else {"content": [_token(item) for item in choice.logprobs], "refusal": None}
    message = {"role": "assistant", "content": choice.text, "refusal": None}
    return {"index": index, "message": message, "logprobs": tokens, "finish_reason": choice.finish_reason}


def _token(item: TokenLogprob) -> dict[str, Any]:
    alternatives = [_one_token(token, logprob) for token, logprob in item.top]
    return _one_token(item.token, item.logprob) | {"top_logprobs": alternatives}


def _one_token(token: str, logprob: float) -> dict[str, Any]:
    """JSON has no minus infinity: the service's own stand-in for it is -9999."""
    return {"token": token, "logprob": max(logprob, -9999.0), "bytes": list(token.encode())}
