"""The CPU's paged cache: keys in tiles of sixteen, and the compiled kernels that read them in place.

P pages  T tiles per page  K KV heads  D head dim  W head dim rounded up to 16
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline.model import tiled_kernels as at
from pipeline.model.attention import AttentionSpec
from pipeline.model.kv_cache import CacheShape, RaggedBatch
from pipeline.model.threads import run_parallel, thread_count
from pipeline.model.vector import BFLOAT16, FLOAT16, FLOAT32, LANES

KINDS = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16, torch.float16: FLOAT16}
ITEM_TOKENS = 16  # tokens of a prompt in one work item


class TiledAttention:
    """Same interface as kv_cache.PagedAttention. A token's result depends on its own row alone, bit for bit."""

    numerics = "tiled-1"

    def __init__(self, shape: CacheShape, dtype: torch.dtype) -> None:
        self.shape, self.kind = shape, KINDS[dtype]
        self._tiles = -(-shape.page_size // LANES)
        self._width = -(-shape.head_dim // LANES) * LANES
        places = (shape.pages, shape.kv_heads, self._tiles)
        self.keys = [torch.empty(*places, shape.head_dim, LANES, dtype=dtype) for _ in range(shape.layers)]
        self.values = [torch.empty(*places, LANES, self._width, dtype=dtype) for _ in range(shape.layers)]
        self._attend, self._store = at.attention_kernel(self.kind).address, at.store_kernel(self.kind).address
        self._arguments = np.zeros(len(at.FIELDS), np.int64)
        self._scratch = np.zeros(0, np.float32)

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Copy a page, all layers; what lies after its first `tokens` slots is never read."""
        for store in (*self.keys, *self.values):
            store[target] = store[source]

    def begin(self, batch: RaggedBatch) -> None:
        """Say which tokens the next `attend` calls are about."""
        self._batch = batch
        self._items = work_items(batch, self.shape.kv_heads)
        lengths = batch.past + np.diff(batch.starts)
        self._longest = int(lengths.max())
        self._scores = int((np.diff(batch.starts) * lengths).sum())

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> Tensor:
        """q [N, H, D]; k, v [N, K, D] -> [N, H, D]; zeros for padding tokens."""
        batch, shape = self._batch, self.shape
        real, heads = int(batch.starts[-1]), q.shape[1]
        q, k, v = (x if x.stride(-1) == 1 and x.stride(1) == shape.head_dim else x.contiguous() for x in (q, k, v))
        out = torch.empty(*q.shape[:2], self._width, dtype=q.dtype)
        out[real:] = 0
        stride, bytes_each = self._fit_scratch()
        a = self._arguments
        a[:] = (
            0, 0, 0, self._items.ctypes.data, len(self._items), self._scratch.ctypes.data, bytes_each, stride,
            q.data_ptr(), q.stride(0) * q.element_size(), out.data_ptr(), self.keys[layer].data_ptr(), self.values[layer].data_ptr(),
            k.data_ptr(), k.stride(0) * k.element_size(), v.data_ptr(), v.stride(0) * v.element_size(),
            batch.slots.ctypes.data, real, batch.tables.ctypes.data, batch.tables.shape[1], batch.past.ctypes.data,
            batch.starts.ctypes.data, shape.page_size, self._tiles, shape.head_dim, self._width, heads // shape.kv_heads,
            shape.kv_heads, spec.window or 0, 0, 0,
        )  # fmt: skip
        a[-2:].view(np.float32)[::2] = spec.softcap or 0.0, spec.scale / (spec.softcap or 1.0)
        run_parallel(self._store, a.ctypes.data, 2 * k.numel())
        run_parallel(self._attend, a.ctypes.data, 4 * self._scores * heads * self._width)
        return out[..., : shape.head_dim]

    def _fit_scratch(self) -> tuple[int, int]:
        """Room per thread for queries, outputs and scores of one tile; returns bytes per row of scores, and per thread."""
        stride = 4 * (-(-self._longest // LANES) + 1) * LANES
        bytes_each = at.MAX_TILE * (4 * self.shape.head_dim + 4 * self._width + stride)
        bytes_each = -(-bytes_each // 64) * 64
        if self._scratch.nbytes < bytes_each * thread_count():
            self._scratch = np.zeros(bytes_each * thread_count() // 4 * 2, np.float32)
        return stride, bytes_each


def work_items(batch: RaggedBatch, kv_heads: int) -> NDArray[np.int32]:
    """int32 [items, 4]: row, KV head, first token, tokens; the costliest first, so that threads end together."""
    counts = np.diff(batch.starts)
    blocks = -(-counts // ITEM_TOKENS)
    row = np.repeat(np.arange(len(counts)), blocks)
    first = (np.arange(len(row)) - np.repeat(np.cumsum(blocks) - blocks, blocks)) * ITEM_TOKENS
    tokens = np.minimum(counts[row] - first, ITEM_TOKENS)
    order = np.argsort(-(batch.past[row] + first + tokens) * tokens, kind="stable")
    row, first, tokens = row[order], first[order], tokens[order]
    items = np.empty((len(row), kv_heads, 4), np.int32)
    items[..., 0], items[..., 1] = row[:, None], np.arange(kv_heads)
    items[..., 2], items[..., 3] = first[:, None], tokens[:, None]
    return items.reshape(-1, 4)
