"""int8 weights times int8 activations on the CPU, exact in integers, so that a row's bits never see the other rows.

Each row of activations has its own scale (its largest absolute value is 127). oneDNN multiplies signed by signed fast only
with AMX; unsigned by signed is fast with VNNI too, so activations go in as uint8 with zero point 128, which is the same number.
Without such instructions u8 x s8 may saturate: then weights are dequantised instead.

N tokens  I inputs  O outputs
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

FAST_FLAGS = {"avx512_vnni", "avx_vnni", "amx_int8"}
njit: Any = numba.njit


@cache
def int8_is_fast() -> bool:
    """True where the processor has integer dot products and this torch has oneDNN's int8 linear."""
    info = Path("/proc/cpuinfo")
    flags = set(info.read_text(encoding="utf-8").split()) if info.is_file() else set()
    return bool(FAST_FLAGS & flags) and hasattr(torch.ops.onednn, "qlinear_pointwise")


class Int8Product:
    """x [N, I] -> x W^T + b [N, O] in x's type, for weight int8 [O, I] and scale float32 [O].

    terms: 2 rounds what the first rounding left over once more and adds a second product: sixteen bits where few large values
    would leave the small ones no bits.
    """

    def __init__(self, weight: Tensor, scale: Tensor, terms: int = 1) -> None:
        self.terms = terms
        self.weight = torch.ops.onednn.qlinear_prepack(weight, None)
        self.scale = scale
        self.zeros = torch.zeros(scale.shape[0], dtype=torch.int64)

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        rest = x.to(torch.float32, copy=self.terms == 2).contiguous()
        out = self._product(rest)
        if self.terms == 2:
            out.add_(self._product(rest))
        return (out if bias is None else out.add_(bias)).to(x.dtype)

    def _product(self, x: Tensor) -> Tensor:
        levels, row_scale = quantize_rows(x, rest=x if self.terms == 2 else None)
        out: Tensor = torch.ops.onednn.qlinear_pointwise(
            levels, 1.0, 128, self.weight, self.scale, self.zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )
        return out.mul_(row_scale[:, None])


def quantize_rows(x: Tensor, rest: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """uint8 [N, I] with zero point 128, and scales float32 [N]: float32 x is about (levels - 128) * scale.

    rest: takes what is left over; may be x itself. Rows that are not finite give scales that are not finite, so that a later check
    finds them.
    """
    levels = np.empty(x.shape, np.uint8)
    scales = np.empty(x.shape[0], np.float32)
    _quantize(x.numpy(), levels, scales)
    if rest is not None:
        _subtract(x.numpy(), levels, scales, rest.numpy())
    return torch.from_numpy(levels), torch.from_numpy(scales)


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _quantize(x: Any, levels: Any, scales: Any) -> None:
    for row in range(x.shape[0]):
        largest, total = np.float32(0), np.float32(0)
        for column in range(x.shape[1]):
            value = abs(x[row, column])
            largest = max(largest, value)
            total += value * np.float32(0)  # NaN if any value is not finite; max() may lose a NaN
        scales[row] = largest / np.float32(127) + total
        factor = np.float32(127) / largest if largest > 0 else np.float32(0)
        for column in range(x.shape[1]):
            levels[row, column] = np.uint8(np.rint(x[row, column] * factor) + np.float32(128))


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _subtract(x: Any, levels: Any, scales: Any, rest: Any) -> None:
    for row in range(x.shape[0]):
        for column in range(x.shape[1]):
            rest[row, column] = x[row, column] - (np.float32(levels[row, column]) - np.float32(128)) * scales[row]
