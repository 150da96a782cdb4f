"""How fast the engine is on this machine, beside what the machine can do and, if asked, beside other engines.

The prompts are made here from a seed: lengths vary about twentyfold and half of them share an instruction. The clock runs from
prompt texts to answer texts; loading and a warm-up are told apart from it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from pipeline.runners.contenders import Contender, Setup, Workload

INSTRUCTION = (
    "You are a careful assistant. Read the notes below and answer in plain words. Keep to what the notes say, name the place and "
    "the time where they are given, and say so when something is missing. Do not repeat the notes. "
) * 2
NOTES = (
    "the ferry leaves from the north pier",
    "the museum is closed on Monday",
    "a ticket costs four euros",
    "the lamp in room nine is broken",
    "two boxes of paper arrived",
    "the meeting moved to Thursday",
    "water was turned off at noon",
    "the garden gate stays open",
)


def workload(rows: int, new_tokens: int, varied: bool, seed: int = 0) -> Workload:
    """`rows` prompts of 3 to 60 notes. varied: answers of 4 to 4 x new_tokens instead of new_tokens each."""
    draw = random.Random(seed)
    prompts, targets = [], []
    for number in range(rows):
        notes = ". ".join(f"{draw.choice(NOTES)} ({draw.randint(1, 99)})" for _ in range(int(3 * 20 ** draw.random())))
        prompts.append(f"{INSTRUCTION if number % 2 else ''}Notes: {notes}.\nQuestion {number}: what should be done first?\nAnswer:")
        targets.append(draw.randint(4, 4 * new_tokens) if varied else new_tokens)
    return Workload(prompts, targets)


def compare(names: Sequence[str], setup: Setup, work: Workload, repeats: int) -> list[dict[str, Any]]:
    """Runs in turn, after a short warm-up of each, every contender in its own process; the run of median seconds of each.

    same_answers: rows whose tokens are those of the first contender.
    """
    contenders: list[Contender] = []
    try:
        for name in names:
            contenders.append(Contender(name, setup))
            contenders[-1].measure(Workload(work.prompts[:4], [2] * len(work.prompts[:4])))
        runs = [[contender.measure(work) for contender in contenders] for _ in range(repeats)]
    finally:
        for contender in contenders:
            contender.close()
    found, expected = [], runs[0][0]["tokens"]
    for index in range(len(contenders)):
        mine = [run[index] for run in runs]
        middle = sorted(mine, key=lambda result: result["seconds"])[len(mine) // 2]
        same = sum(a == b for a, b in zip(expected, middle.pop("tokens")))
        found.append(middle | {"runs_s": [round(result["seconds"], 3) for result in mine], "same_answers": same})
    return found


def ceilings(device: str) -> dict[str, float]:
    """What this machine reaches: bytes read per second, and matrix multiplications of 1024 x 2048 x 2048 per second."""
    data = torch.ones(64 * 1024 * 1024, dtype=torch.float32, device=device)
    read = _best(data.sum, device)
    found = {"memory_read_bytes_per_s": data.numel() * 4 / read}
    for dtype in (torch.float32, torch.bfloat16):
        a, b = torch.ones(1024, 2048, dtype=dtype, device=device), torch.ones(2048, 2048, dtype=dtype, device=device)
        found[f"{str(dtype).removeprefix('torch.')}_flop_per_s"] = 2 * 1024 * 2048 * 2048 / _best(partial(torch.matmul, a, b), device)
    return found


def _best(work: Callable[[], Any], device: str, seconds: float = 0.5) -> float:
    """Shortest time of one call within about `seconds`."""
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return best
