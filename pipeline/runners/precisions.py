"""What a precision costs and brings: bytes, load time, perplexity by length, answer tokens per second, for `bench --precisions`."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from pipeline.core.params import ModelParams
from pipeline.engine.engine import Engine, EngineSettings
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
EDGES = (64, 256, 1024)  # upper bounds of the length buckets, tokens


def measure(name: str, folder: Path, rows: Sequence[Sequence[int]], *, new_tokens: int = 64, device: str = "auto") -> dict[str, Any]:
    """One line of the table: `rows` are token ids of texts, scored as they are and then used as prompts.

    bytes: of all tensors as loaded. perplexity: over all rows and by length bucket, with the engine's own kernels.
    """
    began = time.monotonic()
    decoder = load_decoder(folder, ModelParams.model_validate({**PRECISIONS[name], "device": device}))
    load_s = time.monotonic() - began
    size = weight_bytes(decoder)
    engine = Engine(decoder, EngineSettings(), ())  # packs the weights
    losses = perplexities(decoder, rows)
    requests = [
        Request(index, tuple(row[:256]), Sampling(max_new_tokens=new_tokens, ignore_eos=True)) for index, row in enumerate(rows[:64])
    ]
    began = time.monotonic()
    made = sum(len(done.token_ids) for done in engine.generate(requests))
    elapsed = time.monotonic() - began
    return {"precision": name, "bytes": size, "load_s": round(load_s, 2), "tokens_per_s": round(made / elapsed, 1), "perplexity": losses}


def weight_bytes(decoder: Decoder) -> int:
    """Bytes of all parameters and buffers, shared ones once."""
    tensors = {tensor.data_ptr(): tensor.nbytes for tensor in [*decoder.parameters(), *decoder.buffers()]}
    return sum(tensors.values())


def perplexities(decoder: Decoder, rows: Sequence[Sequence[int]]) -> dict[str, float]:
    """exp of the mean loss per token, for all rows and for each length bucket; every token but a row's first counts."""
    sums: dict[str, list[float]] = {}
    for row in rows:
        bucket = next((f"to {edge}" for edge in EDGES if len(row) <= edge), f"above {EDGES[-1]}")
        loss = row_loss(decoder, row)
        for name in ("all", bucket):
            total = sums.setdefault(name, [0.0, 0])
            total[0] += loss
            total[1] += len(row) - 1
    return {name: round(math.exp(loss / max(count, 1)), 4) for name, (loss, count) in sums.items()}


def row_loss(decoder: Decoder, row: Sequence[int]) -> float:
    """Sum of -ln p over a row's tokens but the first."""
    ids = torch.tensor(row, device=decoder.device)
    positions = torch.arange(len(row), device=decoder.device)
    logits = decoder(ids, positions, FullAttention(), positions[:-1])[:, : decoder.usable_vocab]
    return float(functional.cross_entropy(logits.float(), ids[1:], reduction="sum"))
