"""Weights in 8 or 4 bits: how they are rounded, looked up and multiplied; their form is in stored_form.py.

Rows never share a number, so matrices may be stacked or cut by rows before or after.

O rows (outputs)  I columns (inputs)  G groups of columns  N tokens
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.model.int4_unpack import unpack_bfloat16
from pipeline.model.int8_product import Int8Product, int8_is_fast
from pipeline.model.linear import KERNELS
from pipeline.model.stored_form import GROUP

DEQUANTIZED_ROWS = 1024  # of a matrix at a time; a whole head in float32 may need more memory than the model in int4


def quantize(weight: Tensor, bits: int) -> dict[str, Tensor]:
    """The parts of stored_form for a float matrix [O, I]."""
    wide = weight.float()
    if bits == 8:
        scale = wide.abs().amax(1) / 127
        scale = torch.where(scale > 0, scale, torch.ones_like(scale))
        return {"": (wide / scale[:, None]).round_().to(torch.int8), "_scale": scale}
    groups = functional.pad(wide, (0, -wide.shape[1] % GROUP)).reshape(wide.shape[0], -1, GROUP)  # [O, G, GROUP]
    low = groups.amin(2)
    scale = ((groups.amax(2) - low) / 15).half()
    scale, minimum = torch.where(scale > 0, scale, torch.ones_like(scale)), low.half()
    levels = ((groups - minimum.float()[..., None]) / scale.float()[..., None]).round_().clamp_(0, 15).to(torch.uint8).flatten(1)
    return {"": levels[:, ::2] | levels[:, 1::2] << 4, "_scale": scale, "_minimum": minimum}


def dequantize(parts: dict[str, Tensor], columns: int, dtype: torch.dtype) -> Tensor:
    """The float matrix [O, I] that the parts stand for."""
    levels, scale = parts[""], parts["_scale"]
    if "_minimum" not in parts:
        return (levels.to(torch.float32) * scale[:, None]).to(dtype)
    if dtype == torch.bfloat16 and levels.device.type == "cpu":
        return unpack_bfloat16(levels, scale, parts["_minimum"])[:, :columns]
    levels = torch.stack((levels & 15, levels >> 4), dim=-1).reshape(*scale.shape, GROUP)
    wide: Tensor = levels.to(torch.float32) * scale.float()[..., None] + parts["_minimum"].float()[..., None]
    return wide.flatten(1)[:, :columns].to(dtype)


class _Quantized(nn.Module):
    """A matrix kept as its parts."""

    def __init__(self, parts: dict[str, Tensor], columns: int) -> None:
        super().__init__()
        self.in_features, self.out_features = columns, parts[""].shape[0]
        self.suffixes = tuple(parts)
        for suffix, part in parts.items():
            self.register_buffer(f"weight{suffix}", part)

    @property
    def parts(self) -> dict[str, Tensor]:
        return {suffix: self.get_buffer(f"weight{suffix}") for suffix in self.suffixes}


class QuantizedEmbedding(_Quantized):
    """Rows of an int8 embedding in `dtype`."""

    def __init__(self, parts: dict[str, Tensor], columns: int, dtype: torch.dtype) -> None:
        super().__init__(parts, columns)
        self.dtype = dtype

    def forward(self, token_ids: Tensor) -> Tensor:
        return dequantize({suffix: part[token_ids] for suffix, part in self.parts.items()}, self.in_features, self.dtype)


class QuantizedLinear(_Quantized):
    """y = x W^T + b with the weight dequantised for each product; with `pack`, int8 is multiplied as int8 where the CPU can.

    A row's result never depends on the other rows once packed: integer sums are exact, and floats go in blocks of one shape.
    """

    def __init__(self, parts: dict[str, Tensor], columns: int, bias: Tensor | None, terms: int = 1) -> None:
        super().__init__(parts, columns)
        self.terms = terms  # of the int8 product, see there
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self.kernel = "plain"
        self._product: Int8Product | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self._product is not None:
            return self._product(x, self.bias)
        return torch.cat(
            [self._some_outputs(x, slice(start, start + DEQUANTIZED_ROWS)) for start in range(0, self.out_features, DEQUANTIZED_ROWS)], -1
        )

    def _some_outputs(self, x: Tensor, rows: slice) -> Tensor:
        weight = dequantize({suffix: part[rows] for suffix, part in self.parts.items()}, self.in_features, x.dtype)
        bias = None if self.bias is None else self.bias[rows]
        return functional.linear(x, weight, bias) if self.kernel == "plain" else KERNELS["blocks"](weight, bias)(x)

    def pack(self) -> str:
        """Choose how to multiply on this machine; returns the kernel's name. CPU only."""
        if self.kernel == "plain":
            whole = "_minimum" not in self.suffixes
            self.kernel = "int8-onednn" if whole and int8_is_fast() else f"int{8 if whole else 4}-blocks"
            if self.kernel == "int8-onednn":
                self._product = Int8Product(self.get_buffer("weight"), self.get_buffer("weight_scale"), self.terms)
        return self.kernel

    def drop_weight(self) -> None:
        """Free the plain parts of a packed layer whose kernel has its own copy."""
        if self._product is not None:
            self.weight = self.get_buffer("weight").new_empty(0)
