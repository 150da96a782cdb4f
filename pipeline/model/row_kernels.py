"""The decoder's elementwise work on CPU, one reading and one rounding each: RMS norm, rotary turn, gated activation.

Each returns None where it does not apply (another device or dtype, an odd width), and the caller's plain form computes it.
A token's result depends on its own numbers alone. N tokens  H heads  D head dim  R rotated values of a head  F feed-forward
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import torch
from numba import cfunc
from numba.core import types
from torch import Tensor

from pipeline.model import vector as vec
from pipeline.model.threads import run_parallel
from pipeline.model.vector import BFLOAT16, FLOAT16, FLOAT32, LANES, SIZES

KINDS = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16, torch.float16: FLOAT16}
GRAIN = 8  # tokens that a thread takes at a time
TICKETS, TOKENS, X, X_STRIDE, OUT, OUT_STRIDE, WIDTH, FIRST, SECOND, THIRD = (8 * index for index in range(10))


def rms_norm(x: Tensor, weight: Tensor, offset: float, eps: float) -> Tensor | None:
    """x [..., E] -> x / sqrt(mean(x^2) + eps) * (weight + offset)."""
    flat = _rows(x, x.shape[-1])
    if flat is None or weight.dtype != x.dtype:
        return None
    out = torch.empty(x.shape, dtype=x.dtype)
    _run(norm_kernel(KINDS[x.dtype]), flat, out, x.shape[-1], 4 * x.numel(), weight.data_ptr(), _bits(offset), _bits(eps))
    return out


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> bool:
    """Turn the first R values of each head in place, value i with value i + R/2; x [N, H, D], cos and sin [N, 1, R].

    Returns whether it was done.
    """
    rotated = cos.shape[-1]
    if x.dtype not in KINDS or x.device.type != "cpu" or cos.dtype != x.dtype or rotated % (2 * LANES) or x.stride()[1:] != (x.shape[2], 1):
        return False
    arguments = (rotated, 6 * x.numel(), cos.contiguous().data_ptr(), sin.contiguous().data_ptr(), x.shape[1] << 32 | x.shape[2])
    _run(turn_kernel(KINDS[x.dtype]), x, x, *arguments)
    return True


def silu_gate(gate_up: Tensor) -> Tensor | None:
    """gate_up [N, 2 F] -> silu(gate) * up [N, F]."""
    width = gate_up.shape[-1] // 2
    flat = _rows(gate_up, width)
    if flat is None:
        return None
    out = torch.empty(*gate_up.shape[:-1], width, dtype=gate_up.dtype)
    _run(silu_kernel(KINDS[gate_up.dtype]), flat, out, width, 12 * out.numel())
    return out


def _rows(x: Tensor, width: int) -> Tensor | None:
    """x as rows of contiguous numbers, where the kernels can take them so."""
    if x.dtype not in KINDS or x.device.type != "cpu" or width < LANES:
        return None
    return x if x.dim() == 2 and x.stride(1) == 1 else x.contiguous().view(-1, x.shape[-1])


def _run(kernel: Any, x: Tensor, out: Tensor, width: int, operations: int, first: int = 0, second: int = 0, third: int = 0) -> None:
    size = x.element_size()
    arguments = np.array(
        [0, len(x), x.data_ptr(), x.stride(0) * size, out.data_ptr(), out.stride(-2) * size, width, first, second, third], np.int64
    )
    run_parallel(kernel.address, arguments.ctypes.data, operations)


def _bits(value: float) -> int:
    """A float32 as it lies in the low half of an argument."""
    return int(np.float32(value).view(np.int32))


@cache
def norm_kernel(kind: int, source: str = vec.SOURCE) -> Any:
    """FIRST: address of the weight; SECOND, THIRD: offset and eps. source: as for tiled_kernels.attention_kernel."""
    size = SIZES[kind]

    def norm(a: Any) -> Any:
        assert source
        width, count, weight = vec.load_i64(a + WIDTH), vec.load_i64(a + TOKENS), vec.load_i64(a + FIRST)
        zero, offset = vec.splat(types.float32(0.0)), vec.splat(vec.load_f32(a + SECOND))
        start = vec.take_ticket(a + TICKETS) * GRAIN
        while start < count:
            for row in range(start, min(start + GRAIN, count)):
                x = vec.load_i64(a + X) + row * vec.load_i64(a + X_STRIDE)
                out = vec.load_i64(a + OUT) + row * vec.load_i64(a + OUT_STRIDE)
                squares = zero
                for j in range(0, width, LANES):
                    at = min(j, width - LANES)  # the last lanes again: those before j were counted
                    value = vec.load(x + at * size, kind)
                    squares = vec.add(squares, vec.first_lanes(j - at, zero, vec.mul(value, value)))
                scale = types.float32(1.0 / math.sqrt(vec.sum_lanes(squares) / width + vec.load_f32(a + THIRD)))
                for j in range(0, width, LANES):
                    at = min(j, width - LANES)
                    value = vec.mul(vec.load(x + at * size, kind), vec.splat(scale))
                    vec.store(out + at * size, vec.mul(value, vec.add(vec.load(weight + at * size, kind), offset)), kind)
            start = vec.take_ticket(a + TICKETS) * GRAIN

    return cfunc(types.void(types.int64), cache=True)(norm)


@cache
def turn_kernel(kind: int, source: str = vec.SOURCE) -> Any:
    """FIRST, SECOND: addresses of cosines and sines [N, WIDTH]; THIRD: heads in the high half, head dim in the low half."""
    size = SIZES[kind]

    def turn_heads(a: Any) -> Any:
        assert source
        width, count = vec.load_i64(a + WIDTH), vec.load_i64(a + TOKENS)
        heads, dim = vec.load_i32(a + THIRD + 4), vec.load_i32(a + THIRD)
        half = width // 2 * size
        start = vec.take_ticket(a + TICKETS) * GRAIN
        while start < count:
            for row in range(start, min(start + GRAIN, count)):
                cos, sin = vec.load_i64(a + FIRST) + row * width * size, vec.load_i64(a + SECOND) + row * width * size
                for head in range(heads):
                    x = vec.load_i64(a + X) + row * vec.load_i64(a + X_STRIDE) + head * dim * size
                    for j in range(0, half, LANES * size):
                        low, high = vec.load(x + j, kind), vec.load(x + half + j, kind)
                        left = vec.sub(vec.mul(low, vec.load(cos + j, kind)), vec.mul(high, vec.load(sin + j, kind)))
                        right = vec.add(vec.mul(high, vec.load(cos + half + j, kind)), vec.mul(low, vec.load(sin + half + j, kind)))
                        vec.store(x + j, left, kind)
                        vec.store(x + half + j, right, kind)
            start = vec.take_ticket(a + TICKETS) * GRAIN

    return cfunc(types.void(types.int64), cache=True)(turn_heads)


@cache
def silu_kernel(kind: int, source: str = vec.SOURCE) -> Any:
    """X holds WIDTH gates and WIDTH values per token."""
    size = SIZES[kind]

    def silu(a: Any) -> Any:
        assert source
        width, count = vec.load_i64(a + WIDTH), vec.load_i64(a + TOKENS)
        zero, one, closed = vec.splat(types.float32(0.0)), vec.splat(types.float32(1.0)), vec.splat(types.float32(-87.0))
        start = vec.take_ticket(a + TICKETS) * GRAIN
        while start < count:
            for row in range(start, min(start + GRAIN, count)):
                x = vec.load_i64(a + X) + row * vec.load_i64(a + X_STRIDE)
                out = vec.load_i64(a + OUT) + row * vec.load_i64(a + OUT_STRIDE)
                for j in range(0, width, LANES):
                    at = min(j, width - LANES)
                    gate, up = vec.load(x + at * size, kind), vec.load(x + (width + at) * size, kind)
                    gate = vec.larger(closed, gate)  # silu is 0 to float32 from there on; not a number stays so
                    gate = vec.div(gate, vec.add(one, vec.exp(vec.sub(zero, gate))))
                    vec.store(out + at * size, vec.mul(gate, up), kind)
            start = vec.take_ticket(a + TICKETS) * GRAIN

    return cfunc(types.void(types.int64), cache=True)(silu)
