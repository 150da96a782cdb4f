"""Rows that came as OpenAI-batch requests go back as OpenAI-batch answers: data/results/openai/output.jsonl and errors.jsonl."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from pipeline.core.manifest import read_json
from pipeline.core.paths import Paths
from pipeline.runners.checkpoint import present_checkpoint
from pipeline.tables.openai_batch import BatchAnswer, Choice, TokenLogprob, write_openai_batch
from pipeline.tables.query import connect, create_views, sql_text
from pipeline.text.tokenizer import Tokenizer

Decode = Callable[[int], str]

QUERY = """
WITH asked AS (
    SELECT v.ordinal, v.id, c.sample, v.meta, v.overrides, p.prompt_tokens, c.text, c.finish_reason, c.completion_tokens, c.token_ids,
        c.token_logprobs, c.top_logprobs, c.error
    FROM completions c JOIN validated v USING (ordinal) JOIN prompts p USING (ordinal)
    WHERE NOT v.control AND v.source_file IN ({files})),
refused AS (
    SELECT ordinal, id, 0 AS sample, reason || ': ' || detail AS error FROM rejected WHERE NOT control AND source_file IN ({files}))
SELECT * FROM asked UNION ALL BY NAME SELECT * FROM refused ORDER BY ordinal, sample
"""


def write_openai_results(folder: Path, validated: dict[str, Any], paths: Paths) -> dict[str, int] | None:
    """Write both files below `folder`; None when no input was an OpenAI-batch file. validated: that stage's manifest."""
    files = [item["path"] for item in validated.get("files", []) if item.get("format") == "openai-batch"]
    if not files:
        return None
    return write_openai_batch(folder, _answers(files, paths))


def _answers(files: list[str], paths: Paths) -> Iterator[BatchAnswer]:
    served = read_json(paths.model_json, made_by="model")["source"] if paths.model_json.is_file() else None
    decode = _decoder(paths)
    with connect(paths.work / "tmp") as con:
        create_views(con, paths)
        reader = con.sql(QUERY.format(files=", ".join(map(sql_text, files)))).to_arrow_reader(2048)
        rows = (row for batch in reader for row in batch.to_pylist())
        for _, group in groupby(rows, key=lambda row: row["ordinal"]):
            yield _answer(list(group), served, decode)


def _answer(samples: list[dict[str, Any]], served: str | None, decode: Decode) -> BatchAnswer:
    """One request's samples; a sample that failed fails the request, as it does in the service.

    served: the model that answered, whatever the request asked for; None for answers made elsewhere, which keep that name.
    """
    first = samples[0]
    model = served or (json.loads(first["meta"]) if first["meta"] else {}).get("model") or "none"
    error = next((row["error"] for row in samples if row["error"] is not None), None)
    if error is not None:
        code, _, message = error.partition(": ")
        return BatchAnswer(first["id"], first["ordinal"], model, error=(code, message))
    wanted = "logprobs" in json.loads(first["overrides"] or "{}")
    choices = [
        Choice(row["text"], row["finish_reason"], row["completion_tokens"] or 0, _logprobs(row, decode) if wanted else None)
        for row in samples
    ]
    return BatchAnswer(first["id"], first["ordinal"], model, first["prompt_tokens"] or 0, choices)


def _logprobs(row: dict[str, Any], decode: Decode) -> list[TokenLogprob]:
    top = row["top_logprobs"] or [[] for _ in row["token_ids"]]
    return [
        TokenLogprob(decode(token_id), logprob, [(decode(item["token_id"]), item["logprob"]) for item in alternatives])
        for token_id, logprob, alternatives in zip(row["token_ids"], row["token_logprobs"], top)
    ]


def _decoder(paths: Paths) -> Decode:
    """Token id to its text; the tokenizer is read only when somebody asked for logprobs."""
    held: list[Tokenizer] = []

    def decode(token_id: int) -> str:
        if not held:
            folder = present_checkpoint(paths)
            if folder is None:
                return f"token {token_id}"
            held.append(Tokenizer.load(folder))
        return held[0].decode([token_id])

    return decode
