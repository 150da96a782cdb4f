"""What sampling needs of a row of logits, from one reading: the likeliest token, and a maximum and a sum for each block of tokens.

A row's numbers do not depend on the rows beside it. M rows  V vocabulary  C blocks of BLOCK tokens, the last one shorter
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numba import cfunc
from numba.core import types
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from pipeline.model import vector as vec
from pipeline.model.threads import run_parallel
from pipeline.model.vector import BFLOAT16, FLOAT16, FLOAT32, LANES, SIZES

BLOCK = 64
KINDS = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16, torch.float16: FLOAT16}
COLDEST = 1e-30  # temperatures below count as this: nothing but the likeliest token is left long before

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LogitSummary:
    """Weights are exp((logit - best) / temperature). What is not a number, or infinite, makes its row's sums so too."""

    ids: list[int]  # [M] token with the largest logit, the lowest of equal ones
    best: list[float]  # [M] its logit
    peaks: Floats  # [M, C] largest logit of each block
    masses: Floats  # [M, C] sum of weights of each block

    def logsumexp(self, row: int) -> float:
        """Natural log of the sum of exp(logit / temperature) at temperature 1; not finite when the logits are not."""
        total = float(self.masses[row].sum())
        return self.best[row] + math.log(total) if math.isfinite(total) else math.nan


def summarise(logits: Tensor, temperatures: list[float] | None = None) -> LogitSummary:
    """logits [M, V], rows contiguous; temperatures [M], 1 where not given. On a device this is one wait for it."""
    heat = np.maximum(temperatures or np.ones(len(logits)), COLDEST)
    if logits.device.type == "cpu" and logits.dtype in KINDS and logits.shape[1] >= LANES:
        return _compiled(logits, heat)
    return _plain(logits, torch.from_numpy(heat))


def _plain(logits: Tensor, temperatures: Tensor) -> LogitSummary:
    """Any device and dtype: the readable form."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    blocks = functional.pad(wide, (0, -wide.shape[1] % BLOCK), value=-torch.inf).reshape(len(wide), -(-wide.shape[1] // BLOCK), BLOCK)
    peaks, best = blocks.amax(-1), wide.amax(-1)
    ids = (wide == best[:, None]).int().argmax(-1)
    heat = temperatures.to(wide.device, wide.dtype)[:, None, None]
    masses = ((blocks - best[:, None, None]) / heat).exp().sum(-1)
    count = peaks.shape[1]
    found = torch.cat([x.double() for x in (ids[:, None], best[:, None], peaks, masses)], dim=1).cpu().numpy()
    return LogitSummary(found[:, 0].astype(int).tolist(), found[:, 1].tolist(), found[:, 2 : 2 + count], found[:, 2 + count :])


def _compiled(logits: Tensor, temperatures: Floats) -> LogitSummary:
    rows, vocab = logits.shape
    cold = (1 / temperatures).astype(np.float32)
    ids, best = np.empty(rows, np.int64), np.empty(rows, np.float32)
    peaks, masses = (np.empty((rows, -(-vocab // BLOCK)), np.float32) for _ in range(2))
    arguments = np.array([
        0, rows, vocab, logits.data_ptr(), logits.stride(0) * logits.element_size(), cold.ctypes.data, ids.ctypes.data,
        best.ctypes.data, peaks.ctypes.data, masses.ctypes.data, 4 * peaks.shape[1],
    ], np.int64)  # fmt: skip
    run_parallel(summary_kernel(KINDS[logits.dtype]).address, arguments.ctypes.data, rows * vocab)
    return LogitSummary(ids.tolist(), best.tolist(), peaks.astype(np.float64), masses.astype(np.float64))


TICKETS, ROWS, VOCAB, LOGITS, LOGITS_STRIDE, COLD, IDS, BEST, PEAKS, MASSES, BLOCKS_STRIDE = (8 * index for index in range(11))


@cache
def summary_kernel(kind: int, source: str = vec.SOURCE) -> Any:
    """The compiled form for one kind of stored numbers: a C function of the address of an argument block.

    Threads draw rows one after the other. Sums: sixteen lanes over a block of tokens, then a fixed tree. source: as for
    tiled_kernels.attention_kernel.
    """
    size = SIZES[kind]

    def summarise_rows(a: Any) -> Any:
        assert source
        vocab, count = vec.load_i64(a + VOCAB), vec.load_i64(a + ROWS)
        zero, lowest = vec.splat(types.float32(0.0)), vec.splat(types.float32(-float("inf")))
        row = vec.take_ticket(a + TICKETS)
        while row < count:
            logits = vec.load_i64(a + LOGITS) + row * vec.load_i64(a + LOGITS_STRIDE)
            peaks = vec.load_i64(a + PEAKS) + row * vec.load_i64(a + BLOCKS_STRIDE)
            masses = vec.load_i64(a + MASSES) + row * vec.load_i64(a + BLOCKS_STRIDE)
            best, token = types.float32(-float("inf")), 0
            for block in range(0, vocab, BLOCK):
                top = lowest
                for j in range(block, min(block + BLOCK, vocab), LANES):
                    at = min(j, vocab - LANES)  # the last lanes again: those before j were seen
                    top = vec.larger(vec.first_lanes(j - at, lowest, vec.load(logits + at * size, kind)), top)
                peak = vec.max_lanes(top)
                vec.store_f32(peaks + 4 * (block // BLOCK), peak)
                if peak > best:
                    best, token = peak, block
            while token < vocab and vec.load_number(logits + token * size, kind) != best:
                token += 1
            maximum, cold = vec.splat(best), vec.splat(vec.load_f32(vec.load_i64(a + COLD) + 4 * row))
            for block in range(0, vocab, BLOCK):
                total = zero
                for j in range(block, min(block + BLOCK, vocab), LANES):
                    at = min(j, vocab - LANES)
                    weight = vec.exp(vec.mul(vec.sub(vec.load(logits + at * size, kind), maximum), cold))
                    total = vec.add(total, vec.first_lanes(j - at, zero, weight))
                vec.store_f32(masses + 4 * (block // BLOCK), vec.sum_lanes(total))
            vec.store_f32(vec.load_i64(a + BEST) + 4 * row, best)
            vec.store_i64(vec.load_i64(a + IDS) + 8 * row, token)
            row = vec.take_ticket(a + TICKETS)

    return cfunc(types.void(types.int64), cache=True)(summarise_rows)
