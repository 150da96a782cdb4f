"""The linear layers of the decoder. What multiplies their weights is chosen here and nowhere else.

A matrix product may round differently when the number of rows changes, because the library then takes another kernel.
So a row's bits would depend on its company. Here every product has one of a few row counts (RUNGS), and a kernel is
used only if, for every rung, each row came out bit-equal to the same row among MAX_ROWS others (`choose_kernel`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor, nn
from torch.nn import functional

RUNGS = (2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512)
MAX_ROWS = RUNGS[-1]
SPLIT = 1024  # longest sum that onednn's kernels were found to do in one order at any row count
BLOCK_ROWS = 64

Multiply = Callable[[Tensor], Tensor]  # x [M, in], M one of RUNGS -> [M, out]


def padded_rows(count: int) -> int:
    """The row count that a step of `count` tokens is padded to: whole MAX_ROWS, then the next rung."""
    whole, rest = divmod(count, MAX_ROWS)
    return whole * MAX_ROWS + (RUNGS[bisect_left(RUNGS, rest)] if rest or not whole else 0)


class Linear(nn.Module):
    """y = x W^T + b. weight [out, in]; x [N, in] -> [N, out].

    Plain until `pack` is called; packed, it is faster and a row's result is independent of the other rows.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = False) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = nn.Parameter(torch.empty(out_features, in_features), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(out_features), requires_grad=False) if bias else None
        self.kernel = "plain"
        self._multiply: Multiply | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self._multiply is None:
            return functional.linear(x, self.weight, self.bias)
        rows = x.shape[0]
        padded = padded_rows(rows)
        if padded != rows:
            x = functional.pad(x, (0, 0, 0, padded - rows))
        if padded <= MAX_ROWS:
            return self._multiply(x)[:rows]
        return torch.cat([self._multiply(part) for part in torch.split(x, MAX_ROWS)])[:rows]

    def pack(self) -> str:
        """Choose a kernel, give it the weight in its own layout; returns the kernel's name. CPU only."""
        if self._multiply is None:
            self.kernel = choose_kernel(self.weight, self.bias)
            self._multiply = KERNELS[self.kernel](self.weight, self.bias)
        return self.kernel

    def drop_weight(self) -> None:
        """Free the plain weight of a packed layer where the kernel has its own copy."""
        if self.kernel in ("onednn-16", "onednn-1", "onednn-1-split"):
            self.weight = nn.Parameter(self.weight.new_empty(0), requires_grad=False)


@dataclass(frozen=True)
class _Probe:
    """What a kernel choice depends on besides the machine."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    bias: bool
    threads: int


_chosen: dict[_Probe, str] = {}


def choose_kernel(weight: Tensor, bias: Tensor | None) -> str:
    """Name of the first of KERNELS whose rows never see their company, by trying all rungs on this machine."""
    probe = _Probe(tuple(weight.shape), weight.dtype, bias is not None, torch.get_num_threads())
    if probe not in _chosen:
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(MAX_ROWS, weight.shape[1], generator=generator).to(weight.dtype)
        names = list(KERNELS) if weight.dtype in (torch.float32, torch.bfloat16) else ["blocks"]
        _chosen[probe] = next(name for name in names if name == "blocks" or _is_independent(KERNELS[name], weight, bias, x))
    return _chosen[probe]


def _is_independent(make: Callable[[Tensor, Tensor | None], Multiply], weight: Tensor, bias: Tensor | None, x: Tensor) -> bool:
    try:
        multiply = make(weight, bias)
        whole = multiply(x)
    except (RuntimeError, AttributeError):
        return False  # this build of torch does not have it
    parts = [(x[:rows], whole[:rows]) for rows in RUNGS] + [(x[-rows:], whole[-rows:]) for rows in RUNGS if rows <= BLOCK_ROWS]
    return all(torch.equal(multiply(part.clone()), expected) for part, expected in parts)


def _onednn(hint: int, split: bool = False) -> Callable[[Tensor, Tensor | None], Multiply]:
    """oneDNN with the weight packed once, for `hint` rows; `split` sums pieces of SPLIT one after the other."""

    def make(weight: Tensor, bias: Tensor | None) -> Multiply:
        size = SPLIT if split else weight.shape[1]
        if split and weight.shape[1] <= SPLIT:
            raise RuntimeError("nothing to split")
        packed = [torch.ops.mkldnn._reorder_linear_weight(piece.contiguous(), hint) for piece in torch.split(weight, size, dim=1)]
        product = torch.ops.mkldnn._linear_pointwise

        def multiply(x: Tensor) -> Tensor:
            if len(packed) == 1:
                out: Tensor = product(x, packed[0], bias, "none", [], "")
                return out
            parts = [product(piece, w, None, "none", [], "").float() for piece, w in zip(torch.split(x, size, dim=1), packed)]
            total = reduce(torch.add, parts)
            whole: Tensor = total if bias is None else total + bias
            return whole.to(x.dtype)

        return multiply

    return make


def _blocks(weight: Tensor, bias: Tensor | None) -> Multiply:
    """One shape for all: always BLOCK_ROWS rows. Independent by construction, at a cost for few rows."""

    def multiply(x: Tensor) -> Tensor:
        rows = x.shape[0]
        x = functional.pad(x, (0, 0, 0, -rows % BLOCK_ROWS))
        return torch.cat([functional.linear(part, weight, bias) for part in torch.split(x, BLOCK_ROWS)])[:rows]

    return multiply


KERNELS: dict[str, Callable[[Tensor, Tensor | None], Multiply]] = {
    "onednn-16": _onednn(16),
    "onednn-1": _onednn(1),
    "onednn-1-split": _onednn(1, split=True),
    "blocks": _blocks,
}
