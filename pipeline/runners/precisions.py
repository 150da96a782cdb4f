"""What a precision costs and brings: bytes, load, speed, and what it changes in the model's predictions, for `bench --precisions`."""

from __future__ import annotations

import math
import multiprocessing
import resource
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor
from torch.nn import functional

from pipeline.core.params import ModelParams
from pipeline.engine.engine import Engine
from pipeline.engine.request import Request, Sampling
from pipeline.model.attention import FullAttention
from pipeline.model.decoder import Decoder
from pipeline.model.weights import load_decoder

PRECISIONS = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"dtype": "bfloat16", "quantization": "int8"},
    "int4": {"dtype": "bfloat16", "quantization": "int4"},
}
EDGES = (64, 256)  # upper bounds of the length buckets, tokens
SCORED_TOKENS = 25_000
LONGEST_ROW = 1024  # tokens; the logits of a row are in memory at once
Rows = Sequence[Sequence[int]]


def compare_precisions(folder: Path, rows: Rows, *, answers: int, new_tokens: int, device: str = "auto") -> Iterator[dict[str, Any]]:
    """One line of the table per precision, each from a fresh process, so that its peak of memory is its own.

    rows: token ids of texts. `answers` of them are prompts of the speed measure; the first SCORED_TOKENS tokens are scored.
    """
    for name in PRECISIONS:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            yield process.submit(measure, name, folder, rows, answers, new_tokens, device).result()


def measure(name: str, folder: Path, rows: Rows, answers: int, new_tokens: int, device: str) -> dict[str, Any]:
    """load_peak: bytes that loading and the smoke run needed at most, over the bytes of the weights.

    perplexity: of all scored tokens and by length bucket. kl, top1: mean divergence from float32 in nats per token, and the share of
    tokens whose likeliest successor is the same. All with the engine's own kernels.
    """
    read_s = plain_read(folder)
    before, start = psutil.Process().memory_info().rss, time.perf_counter()
    decoder = load_decoder(folder, ModelParams.model_validate({**PRECISIONS[name], "device": device}))
    load_s = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    size = weight_bytes(decoder)
    engine = Engine(decoder)  # packs the weights
    speed = tokens_per_s(engine, rows[:answers], new_tokens)
    whole = load_decoder(folder, ModelParams.model_validate({"dtype": "float32", "device": device}))
    return {
        "precision": name, "bytes": size, "load_s": load_s, "read_s": read_s, "load_peak": peak / size, "tokens_per_s": speed,
        **quality(decoder, whole, list(scored(rows))),
    }  # fmt: skip


def plain_read(folder: Path) -> float:
    """Seconds to read the weights' files once, keeping nothing; the second time, as loading then finds them in the page cache too."""
    buffer, seconds = bytearray(1 << 24), 0.0
    for _ in range(2):
        start = time.perf_counter()
        for file in sorted(folder.glob("*.safetensors")):
            with open(file, "rb", buffering=0) as handle:
                while handle.readinto(buffer):
                    pass
        seconds = time.perf_counter() - start
    return seconds


def weight_bytes(decoder: Decoder) -> int:
    """Bytes of all parameters and buffers, shared ones once."""
    tensors = {tensor.data_ptr(): tensor.nbytes for tensor in [*decoder.parameters(), *decoder.buffers()]}
    return sum(tensors.values())


def tokens_per_s(engine: Engine, rows: Rows, new_tokens: int) -> float:
    """Answer tokens per second, all rows given at once; a short answer of each is the warm-up."""
    seconds = 0.0
    for count in (2, new_tokens):
        sampling = Sampling(max_new_tokens=count, ignore_eos=True)
        requests = [Request(number, tuple(row[:LONGEST_ROW]), sampling) for number, row in enumerate(rows)]
        start = time.perf_counter()
        made = sum(len(done.token_ids) for done in engine.generate(requests))
        seconds = time.perf_counter() - start
    return made / seconds


def scored(rows: Rows) -> Iterator[Sequence[int]]:
    """The first rows of together about SCORED_TOKENS tokens, cut to LONGEST_ROW."""
    left = SCORED_TOKENS
    for row in rows:
        if left > 0 and len(row) > 1:
            yield row[:LONGEST_ROW]
            left -= len(row[:LONGEST_ROW])


def quality(decoder: Decoder, whole: Decoder, rows: Rows) -> dict[str, Any]:
    """Perplexity by length bucket, divergence from `whole` and agreement with it; a row's first token is not predicted."""
    losses: dict[str, list[float]] = defaultdict(lambda: [0.0, 0])
    divergence, same, count = 0.0, 0, 0
    for row in rows:
        ids = torch.tensor(row, device=decoder.device)
        ours, theirs = log_probabilities(decoder, ids), log_probabilities(whole, ids)
        bucket = next((f"to {edge}" for edge in EDGES if len(row) <= edge), f"above {EDGES[-1]}")
        for name in ("all", bucket):
            losses[name][0] += float(functional.nll_loss(ours, ids[1:], reduction="sum"))
            losses[name][1] += len(row) - 1
        divergence += float(functional.kl_div(ours, theirs, reduction="sum", log_target=True))
        same += int((ours.argmax(-1) == theirs.argmax(-1)).sum())
        count += len(row) - 1
    perplexity = {name: math.exp(loss / tokens) for name, (loss, tokens) in losses.items()}
    return {"scored_tokens": count, "perplexity": perplexity, "kl": divergence / max(count, 1), "top1": same / max(count, 1)}


def log_probabilities(decoder: Decoder, ids: Tensor) -> Tensor:
    """[T - 1, V] float32 in natural logs: what each token but the last says about the next one."""
    positions = torch.arange(len(ids), device=ids.device)
    logits: Tensor = decoder(ids, positions, FullAttention(), positions[:-1])[:, : decoder.usable_vocab]
    return functional.log_softmax(logits.float(), dim=-1)
