"""Proof, in every run, that an answer does not depend on its company: a few rows are generated again, each alone.

`pipeline trace --replay` does the same with one row and its whole answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.engine.engine import Engine
from pipeline.engine.request import Completion, Request
from pipeline.runners.generation import Job, make_request
from pipeline.runners.lines import Lines

ROWS = 2
MAX_TOKENS = 32  # an answer under a lower limit is the beginning of the longer one


def canaries(job: Job, lines: Lines, prompts: Callable[[], Iterable[pa.Table]]) -> list[dict[str, Any]]:
    """Generate the canary rows alone and compare them with what the store holds. Says nothing of rows that failed."""
    chosen = _choose(lines)
    token_ids = _prompts_of(set(chosen["ordinal"].to_pylist()), prompts())
    found = []
    for batch in job.store.ordered(chosen.select(lines.keys.column_names)):
        for answer in batch.to_pylist():
            line = chosen.slice(answer["n"], 1).to_pylist()[0]
            request = make_request(job, line["ordinal"], line["sample"], line["setting"], token_ids[line["ordinal"]])
            head = {"ordinal": line["ordinal"], "sample": line["sample"]}
            found.append(head | replay(job, request, answer, MAX_TOKENS))
    return found


def replay(job: Job, request: Request, answer: dict[str, Any], max_tokens: int) -> dict[str, Any]:
    """Ask once more with nothing else in the engine. answer: token_ids and token_logprobs from the batch."""
    limit = min(request.sampling.max_new_tokens, max_tokens)
    return compare(answer, ask_alone(job.answerer.engine, replace(request, sampling=replace(request.sampling, max_new_tokens=limit))))


def ask_alone(engine: Engine, request: Request) -> Completion:
    """One answer with nothing else in the engine, its prompt computed from the first token: no page of another row is used."""
    engine.forget_prompts()
    return next(iter(engine.generate([request])))


def compare(answer: dict[str, Any], alone: Completion) -> dict[str, Any]:
    """first_divergence: place of the first token that differs or is missing, None when `alone` is the answer's beginning.

    largest_logprob_gap: over the equal beginning, natural log.
    """
    length = len(alone.token_ids)
    expected = answer["token_ids"][:length]
    differing = next((i for i, (a, b) in enumerate(zip(expected, alone.token_ids)) if a != b), None)
    if differing is None and len(expected) < length:
        differing = len(expected)
    same = length if differing is None else differing
    stored, again = (np.array(values[:same], np.float32) for values in (answer["token_logprobs"], alone.token_logprobs))
    gap = np.abs(stored - again)  # in the precision of the store
    return {
        "equal": differing is None and alone.error is None,
        "first_divergence": differing,
        "largest_logprob_gap": float(gap.max()) if gap.size else 0.0,
        "tokens": length,
        "error": alone.error,
    }


def _choose(lines: Lines) -> pa.Table:
    """The lines with the lowest keys: a fixed random choice, one line per key."""
    asked = lines.table.filter(pc.greater_equal(lines.table["setting"], 0))
    order = pc.sort_indices(asked, [("key", "ascending"), ("ordinal", "ascending")]).slice(0, ROWS)
    return asked.take(order).combine_chunks()


def _prompts_of(ordinals: set[int], prompts: Iterable[pa.Table]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for table in prompts:
        mask = pc.is_in(table["ordinal"], pa.array(sorted(ordinals), pa.int64()))
        for row in table.filter(mask).select(["ordinal", "token_ids"]).to_pylist():
            found[row["ordinal"]] = row["token_ids"]
    return found
