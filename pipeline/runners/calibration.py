"""A few seconds of real generation, to say how long a night will take on this machine with these prompts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.engine.engine import Engine
from pipeline.engine.request import Request, Sampling

FIRST_ROWS = 8
FULL_ROWS = 64


@dataclass(frozen=True)
class Calibration:
    """Rates of the engine, and how long answers are. completion_tokens: mean per row over the rows that were tried."""

    rows: int
    seconds: float
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    completion_tokens: float

    def seconds_for(self, prompt_tokens: int, rows: int) -> float:
        """Expected seconds of generation."""
        return prompt_tokens / self.prefill_tokens_per_s + rows * self.completion_tokens / self.decode_tokens_per_s


def calibrate(engine: Engine, prompts: Sequence[Sequence[int]], sampling: Sampling, budget_s: float) -> Calibration:
    """Answer some of the prompts, spread over their lengths: a few first, then a full batch unless the few took all the time.

    A full batch takes a few times as long as the few, not eight times; its rates are those of the night.

    prompts: token ids, at least one. Prompts that are tried may lie in the prefix cache afterwards; the engine is not for reuse.
    """
    tried: list[int] = []
    calibration: Calibration | None = None
    for count in (FIRST_ROWS, FULL_ROWS):
        fresh = [index for index in spread([len(prompt) for prompt in prompts], count) if index not in set(tried)]
        if not fresh:
            break
        tried += fresh
        calibration = _measure(engine, [prompts[index] for index in fresh], sampling)
        if calibration.seconds > budget_s:
            break
    assert calibration is not None
    return calibration


def spread(lengths: Sequence[int], count: int) -> NDArray[np.int64]:
    """Indices of up to `count` rows, evenly spread over the sorted lengths."""
    order = np.argsort(np.asarray(lengths), kind="stable")
    places = np.unique(np.linspace(0, len(order) - 1, min(count, len(order))).round().astype(np.int64))
    return order[places]


def _measure(engine: Engine, prompts: Sequence[Sequence[int]], sampling: Sampling) -> Calibration:
    before, start = engine.stats(), time.perf_counter()
    requests = [Request(id=number, token_ids=tuple(prompt), sampling=sampling) for number, prompt in enumerate(prompts)]
    made = sum(len(completion.token_ids) for completion in engine.generate(requests))
    seconds = time.perf_counter() - start
    after = engine.stats()
    spent = {name: max(after[name] - before[name], 1e-9) for name in ("prefill_s", "decode_s")}
    share = seconds / (spent["prefill_s"] + spent["decode_s"])  # planning and bookkeeping belong to both
    return Calibration(
        rows=len(prompts),
        seconds=seconds,
        prefill_tokens_per_s=sum(map(len, prompts)) / (spent["prefill_s"] * share),
        decode_tokens_per_s=max(made, 1) / (spent["decode_s"] * share),
        completion_tokens=made / len(prompts),
    )
