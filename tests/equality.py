"""A table by hand: are a row's tokens and logprobs the same bits in any company, and what does each way of running cost?

    PYTHONPATH=.:tests python -m tests.equality MODEL_FOLDER [--rows 256] [--new-tokens 16] [--dtype float32]

Every way answers the rows of `pipeline bench --varied`; the first way's answers are the measure. Prints Markdown. Half of the
rows are greedy, half drawn.
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

from engine_requests import content

from pipeline.core.params import ModelParams
from pipeline.engine.engine import Engine, EngineSettings
from pipeline.engine.request import Request, Sampling
from pipeline.model.linear import Linear
from pipeline.model.weights import load_decoder
from pipeline.runners.benchmark import workload
from pipeline.text.tokenizer import Tokenizer

WAYS: dict[str, dict[str, Any]] = {
    "64 running rows, pages of 256": {},
    "1 running row": {"max_running_rows": 1},
    "8 running rows": {"max_running_rows": 8},
    "256 running rows": {"max_running_rows": 256},
    "pages of 64": {"page_size": 64},
    "pages of 32": {"page_size": 32},
    "steps of at most 100 tokens": {"max_step_tokens": 100},
    "no prefix reuse": {"reuse_prefixes": False},
    "preemption (cache of 6,000 tokens)": {"kv_tokens": 6000, "page_size": 16},
    "shuffled, a third of the rows removed": {"shuffled": True},
    "plain matrix products, whose bits see the company": {"packed": False},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--new-tokens", type=int, default=16)
    parser.add_argument("--dtype", default="auto")
    options = parser.parse_args()
    decoder = load_decoder(options.model, ModelParams(dtype=options.dtype))
    work = workload(options.rows, options.new_tokens, varied=True)
    prompts = Tokenizer.load(options.model).encode_batch(work.prompts)
    requests = []
    for row, (ids, count) in enumerate(zip(prompts, work.new_tokens)):
        sampling = Sampling(max_new_tokens=count, ignore_eos=True, temperature=0.8 * (row % 2), top_p=0.9, seed=1, logprobs=2)
        requests.append(Request(row, tuple(ids), sampling))
    print(f"{decoder.dtype}, {len(requests)} rows\n\n| way | rows equal | seconds | slots filled | preemptions |\n|---|---|---|---|---|")
    expected: dict[int, Any] = {}
    for name, way in WAYS.items():
        if way.get("packed") is False:
            decoder = load_decoder(options.model, ModelParams(dtype=options.dtype))  # the packed one has given its weights away
        found, line = run(decoder, requests, **way)
        expected = expected or found
        equal = sum(found[row] == expected[row] for row in found)
        print(f"| {name} | {equal} of {len(found)} | {line}", flush=True)


def run(
    decoder: Any, requests: list[Request], kv_tokens: int | None = None, shuffled: bool = False, packed: bool = True, **settings: Any
) -> tuple[dict[int, Any], str]:
    """Answers by row, and the rest of the table's line."""
    config = decoder.config
    slot = 2 * config.layers * config.kv_heads * config.head_dim * decoder.dtype.itemsize
    with patch.object(Linear, "pack", Linear.pack if packed else lambda self: self.kernel):
        engine = Engine(decoder, EngineSettings(kv_bytes=kv_tokens * slot if kv_tokens else None, **settings))
    if shuffled:
        requests = random.Random(0).sample(requests, len(requests) * 2 // 3)
    start = time.perf_counter()
    found = {completion.id: content(completion) for completion in engine.generate(requests)}
    seconds, stats = time.perf_counter() - start, engine.stats()
    return found, f"{seconds:.1f} | {stats['page_fill']:.0%} | {stats['preemptions']} |"


if __name__ == "__main__":
    main()
