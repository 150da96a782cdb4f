"""Requests and engines for the tests of the engine."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from pipeline.engine.engine import Engine, EngineSettings
from pipeline.engine.request import Completion, Request, Sampling

STOP_IDS = (2,)


def random_requests(seed: int, count: int, vocab: int, max_prompt_tokens: int = 30, max_new_tokens: int = 12) -> list[Request]:
    """Prompts of all lengths, half of them with a common head; greedy, sampled and penalised ones."""
    rng = random.Random(seed)
    head = tuple(rng.randrange(3, vocab) for _ in range(max_prompt_tokens // 2))
    kinds = (
        Sampling(), Sampling(temperature=0.8, seed=3), Sampling(temperature=1.2, top_k=20, top_p=0.9, seed=1),
        Sampling(repetition_penalty=1.3, frequency_penalty=0.2), Sampling(temperature=0.7, min_p=0.05, logprobs=3),
    )  # fmt: skip
    out = []
    for number in range(count):
        own = tuple(rng.randrange(3, vocab) for _ in range(rng.randrange(1, max_prompt_tokens // 2)))
        prompt = head[: rng.choice((0, 0, len(head) // 2, len(head)))] + own
        sampling = replace(kinds[number % len(kinds)], max_new_tokens=rng.randrange(1, max_new_tokens + 1))
        out.append(Request(number, prompt, sampling))
    return out


def answers(engine: Engine, requests: list[Request]) -> dict[tuple[int, int], Completion]:
    """Completions by id and sample; every request must come back exactly once."""
    found = list(engine.generate(requests))
    by_id = {(c.id, c.sample): c for c in found}
    assert len(found) == len(by_id) == len(requests)
    return by_id


def content(completion: Completion) -> tuple[Any, ...]:
    """What an answer is: all but its times."""
    return (completion.token_ids, completion.token_logprobs, completion.top_logprobs, completion.finish_reason,
            completion.finish_detail, completion.error)  # fmt: skip


def make_engine(decoder: Any, stop_ids: tuple[int, ...] = STOP_IDS, **settings: Any) -> Engine:
    """An engine that checks its page accounts after every step. pages: cache size in pages instead of bytes."""
    config = decoder.config
    slot = 2 * config.layers * config.kv_heads * config.head_dim * decoder.dtype.itemsize
    settings["kv_bytes"] = settings.pop("pages", 300) * slot * settings.get("page_size", 256)
    return Engine(decoder, EngineSettings(check=True, **settings), stop_ids)
