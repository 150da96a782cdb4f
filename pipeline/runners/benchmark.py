"""How fast the engine is on this machine, beside what the machine can do and, if asked, beside Hugging Face `generate`.

The prompts are made here from a seed: lengths vary about twentyfold and half of them share an instruction. The clock runs from
prompt texts to answer texts; loading and a warm-up are told apart from it.
"""

from __future__ import annotations

import random
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pipeline.core.errors import UsageError
from pipeline.core.params import ModelParams
from pipeline.engine.engine import Engine
from pipeline.engine.request import Request, Sampling
from pipeline.model.weights import load_decoder
from pipeline.text.tokenizer import Tokenizer

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
PEER_BATCH_ROWS = 32


@dataclass(frozen=True)
class Workload:
    """Prompt texts and how many tokens each answer has; the end token is ignored, so that all do the same work."""

    prompts: list[str]
    new_tokens: list[int]


def workload(rows: int, new_tokens: int, varied: bool, seed: int = 0) -> Workload:
    """`rows` prompts of 3 to 60 notes. varied: answers of 4 to 4 x new_tokens instead of new_tokens each."""
    draw = random.Random(seed)
    prompts, targets = [], []
    for number in range(rows):
        notes = ". ".join(f"{draw.choice(NOTES)} ({draw.randint(1, 99)})" for _ in range(int(3 * 20 ** draw.random())))
        prompts.append(f"{INSTRUCTION if number % 2 else ''}Notes: {notes}.\nQuestion {number}: what should be done first?\nAnswer:")
        targets.append(draw.randint(4, 4 * new_tokens) if varied else new_tokens)
    return Workload(prompts, targets)


def ours(folder: Path, params: ModelParams) -> Iterator[Callable[[Workload], dict[str, Any]]]:
    """Load once, then time workloads: yields one function that may be called again."""
    start = time.perf_counter()
    tokenizer, decoder = Tokenizer.load(folder), load_decoder(folder, params)
    engine = Engine(decoder)
    loaded = time.perf_counter() - start

    def measure(work: Workload) -> dict[str, Any]:
        before, start = engine.stats(), time.perf_counter()
        ids = tokenizer.encode_batch(work.prompts)
        requests = [
            Request(number, tuple(prompt), Sampling(max_new_tokens=count, ignore_eos=True))
            for number, (prompt, count) in enumerate(zip(ids, work.new_tokens))
        ]
        done = list(engine.generate(requests))
        texts = [tokenizer.decode(list(completion.token_ids)) for completion in done]
        seconds = time.perf_counter() - start
        after = engine.stats()
        made = sum(len(completion.token_ids) for completion in done)
        failed = next((completion.error for completion in done if completion.error), None)
        if failed or len(texts) != len(work.prompts):
            raise UsageError(f"the workload does not fit this model ({failed}); fewer --new-tokens, or a model with a longer context")
        return {
            "who": f"this engine, {str(decoder.dtype).removeprefix('torch.')}", "seconds": seconds, "load_s": loaded,
            "prompt_tokens": sum(map(len, ids)), "new_tokens": made, "new_tokens_per_s": made / seconds,
            "first_token_s": statistics.median(c.first_token_s or 0.0 for c in done),
            "prefill_s": after["prefill_s"] - before["prefill_s"], "decode_s": after["decode_s"] - before["decode_s"],
        }  # fmt: skip

    yield measure


def transformers_generate(folder: Path, dtype: torch.dtype) -> Iterator[Callable[[Workload], dict[str, Any]]]:
    """Hugging Face `generate` on the same prompts, sorted by length, batches of 32, left-padded. Needs transformers."""
    from transformers import AutoModelForCausalLM, AutoTokenizer  # a peer to measure, no dependency of the pipeline

    start = time.perf_counter()
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    model.train(False)
    loaded = time.perf_counter() - start

    @torch.inference_mode()
    def measure(work: Workload) -> dict[str, Any]:
        start = time.perf_counter()
        order = sorted(range(len(work.prompts)), key=lambda number: len(work.prompts[number]))
        made = prompt_tokens = 0
        for first in range(0, len(order), PEER_BATCH_ROWS):
            rows = order[first : first + PEER_BATCH_ROWS]
            batch = tokenizer([work.prompts[row] for row in rows], return_tensors="pt", padding=True, add_special_tokens=False)
            longest = max(work.new_tokens[row] for row in rows)
            out = model.generate(**batch, max_new_tokens=longest, min_new_tokens=longest, do_sample=False)
            tokenizer.batch_decode(out[:, batch["input_ids"].shape[1] :])
            made += sum(work.new_tokens[row] for row in rows)  # what was asked for; a batch runs to its longest row
            prompt_tokens += int(batch["attention_mask"].sum())
        seconds = time.perf_counter() - start
        return {"who": f"transformers generate, {str(dtype).removeprefix('torch.')}", "seconds": seconds, "load_s": loaded,
                "prompt_tokens": prompt_tokens, "new_tokens": made, "new_tokens_per_s": made / seconds}  # fmt: skip

    yield measure


def compare(measures: Sequence[Callable[[Workload], dict[str, Any]]], work: Workload, repeats: int) -> list[dict[str, Any]]:
    """Medians over runs in turn, after a short warm-up of each; peak memory is the process's, all contenders together."""
    for measure in measures:
        measure(Workload(work.prompts[:4], [2] * len(work.prompts[:4])))
    runs = [[measure(work) for measure in measures] for _ in range(repeats)]
    found = []
    for index in range(len(measures)):
        mine = [run[index] for run in runs]
        middle = sorted(mine, key=lambda result: result["seconds"])[len(mine) // 2]
        found.append(middle | {"runs_s": [round(result["seconds"], 3) for result in mine]})
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


def peak_rss_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
