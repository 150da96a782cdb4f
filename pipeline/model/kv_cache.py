"""Where keys and values of all rows live: pages of fixed size, one tensor per layer. Stores; decides nothing.

P pages  Z tokens per page  K KV heads  D head dim
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from pipeline.model.attention import AttentionSpec


@dataclass(frozen=True, slots=True)
class CacheShape:
    """Sizes of a paged cache."""

    layers: int
    kv_heads: int
    head_dim: int
    pages: int
    page_size: int  # tokens


@dataclass(frozen=True, slots=True)
class RaggedBatch:
    """The tokens of one step, row after row, without padding between rows.

    starts [B + 1]: row b owns tokens starts[b] .. starts[b + 1]; past [B]: its tokens that are in the cache already;
    tables [B, most pages]: its pages in order. Tokens after starts[-1] are padding: they attend to nothing.
    """

    starts: NDArray[np.int32]
    past: NDArray[np.int32]
    tables: NDArray[np.int32]
    page_size: int
    slots: NDArray[np.int64] = field(init=False)  # [N] page * Z + place, where each token's key and value go

    def __post_init__(self) -> None:
        counts = np.diff(self.starts)
        rows = np.repeat(np.arange(len(counts)), counts)
        place = np.arange(self.starts[-1]) - self.starts[rows] + self.past[rows]
        pages = self.tables[rows, place // self.page_size].astype(np.int64)
        object.__setattr__(self, "slots", pages * self.page_size + place % self.page_size)


class PagedAttention:
    """Plain PyTorch over pages [P, Z, K, D]: gathers a row's pages, then attends. Any device and dtype.

    The readable form of what the kernels do, and the path for float64. One row's result never sees the others, but
    its bits may depend on how its tokens are cut into steps; `tiled_attention` has no such dependence.
    """

    numerics = "torch-gather-1"

    def __init__(self, shape: CacheShape, dtype: torch.dtype, device: torch.device) -> None:
        size = (shape.pages, shape.page_size, shape.kv_heads, shape.head_dim)
        self.shape = shape
        self.keys = [torch.zeros(size, dtype=dtype, device=device) for _ in range(shape.layers)]
        self.values = [torch.zeros(size, dtype=dtype, device=device) for _ in range(shape.layers)]

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Copy the first `tokens` slots of a page, all layers."""
        for store in (*self.keys, *self.values):
            store[target, :tokens] = store[source, :tokens]

    def begin(self, batch: RaggedBatch) -> None:
        """Say which tokens the next `attend` calls are about."""
        device = self.keys[0].device
        self._batch = batch
        self._slots = torch.from_numpy(batch.slots).to(device)
        self._tables = torch.from_numpy(batch.tables.astype(np.int64)).to(device)

    def store(self, layer: int, k: Tensor, v: Tensor) -> int:
        """Put the step's k, v [N, K, D] into their slots; returns how many of the N tokens are no padding."""
        real = int(self._batch.starts[-1])
        for kept, new in ((self.keys[layer], k), (self.values[layer], v)):
            kept.view(-1, *kept.shape[2:])[self._slots] = new[:real]
        return real

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> Tensor:
        """q [N, H, D]; k, v [N, K, D] -> [N, H, D]; zeros for padding tokens."""
        self.store(layer, k, v)
        batch, size = self._batch, self.shape.page_size
        keys, values = self.keys[layer], self.values[layer]
        out = torch.zeros_like(q)
        for row, past in enumerate(batch.past.tolist()):
            first, last = int(batch.starts[row]), int(batch.starts[row + 1])
            length = past + last - first
            pages = self._tables[row, : -(-length // size)]
            row_keys, row_values = (x[pages].flatten(0, 1)[:length] for x in (keys, values))
            out[first:last] = _attend_row(q[first:last], row_keys, row_values, past, spec)
        return out


def _attend_row(q: Tensor, k: Tensor, v: Tensor, past: int, spec: AttentionSpec) -> Tensor:
    """Causal attention of the last tokens of one row. q [T, H, D]; k, v [S, K, D], S = past + T -> [T, H, D]."""
    query = torch.arange(past, k.shape[0], device=q.device)[:, None]
    key = torch.arange(k.shape[0], device=q.device)[None, :]
    allowed = key <= query
    if spec.window is not None:
        allowed &= key > query - spec.window
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))  # [H or K, T or S, D]
    if spec.softcap is None:
        out = functional.scaled_dot_product_attention(q[None], k[None], v[None], allowed, scale=spec.scale, enable_gqa=True)[0]
        return out.transpose(0, 1)
    k, v = (x.repeat_interleave(q.shape[0] // x.shape[0], dim=0) for x in (k, v))
    scores = spec.softcap * torch.tanh(q @ k.transpose(1, 2) * spec.scale / spec.softcap)
    scores = scores.masked_fill(~allowed, float("-inf")).to(torch.promote_types(q.dtype, torch.float32))
    weights = functional.softmax(scores, dim=-1).to(q.dtype)
    return (weights @ v).transpose(0, 1)
