"""FlashAttention over all rows of a step at once, on CUDA, without padding (torch.nn.attention.varlen).

Where FlashAttention 3 is installed the kernel reads the pages where they lie (`block_table`); elsewhere the keys and values
of the step's rows are gathered first, one index for all layers. Which of the two, or neither, is settled by a trial at load
against the plain path: a kernel that is missing, refuses or computes something else is not used.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from pipeline.model.attention import AttentionSpec
from pipeline.model.kv_cache import CacheShape, PagedAttention, RaggedBatch

KINDS = (torch.bfloat16, torch.float16)
MAX_HEAD_DIM = 256
TRIAL_TOLERANCE = 0.02  # of attention over values in [-1, 1], both in half precision
Varlen = Callable[..., Tensor]


class VarlenAttention(PagedAttention):
    """The same pages and the same meaning as PagedAttention; soft-capped layers take its path."""

    def __init__(self, shape: CacheShape, dtype: torch.dtype, device: torch.device, varlen: Varlen, in_place: bool) -> None:
        super().__init__(shape, dtype, device)
        self._varlen, self._in_place = varlen, in_place
        self.numerics = "varlen-pages-1" if in_place else "varlen-gather-1"

    def begin(self, batch: RaggedBatch) -> None:
        super().begin(batch)
        counts, lengths = np.diff(batch.starts), batch.past + np.diff(batch.starts)
        self._longest = int(counts.max()), int(lengths.max())
        self._query_ends = self._on_device(batch.starts.astype(np.int32))
        if self._in_place:
            self._lengths, self._block_table = self._on_device(lengths.astype(np.int32)), self._on_device(batch.tables)
            return
        ends = np.concatenate([[0], np.cumsum(lengths)])
        rows = np.repeat(np.arange(len(lengths)), lengths)
        place = np.arange(ends[-1]) - ends[rows]
        slots = batch.tables[rows, place // batch.page_size].astype(np.int64) * batch.page_size + place % batch.page_size
        self._key_slots, self._key_ends = self._on_device(slots), self._on_device(ends.astype(np.int32))

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> Tensor:
        if spec.softcap is not None:
            return super().attend(layer, q, k, v, spec)
        real = self.store(layer, k, v)
        keys, values = self.keys[layer], self.values[layer]
        if self._in_place:  # one split: the sums of a row never depend on the longest row beside it
            where = {"cu_seq_k": None, "seqused_k": self._lengths, "block_table": self._block_table, "num_splits": 1}
        else:
            keys, values = (x.view(-1, *x.shape[2:])[self._key_slots] for x in (keys, values))
            where = {"cu_seq_k": self._key_ends}
        out = torch.zeros_like(q)
        out[:real] = self._varlen(
            q[:real], keys, values, cu_seq_q=self._query_ends, max_q=self._longest[0], max_k=self._longest[1], scale=spec.scale,
            window_size=(-1 if spec.window is None else spec.window - 1, 0), enable_gqa=True, **where,
        )  # fmt: skip
        return out

    def _on_device(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(self.keys[0].device)


def make_varlen(shape: CacheShape, dtype: torch.dtype, device: torch.device) -> PagedAttention:
    """The fastest of the paths that passes a trial on this device; PagedAttention when none does."""
    if device.type == "cuda" and dtype in KINDS and shape.head_dim <= MAX_HEAD_DIM:
        varlen, flash_3 = _torch_varlen(), _activate_flash_3()
        for in_place in (True, False) if flash_3 else (False,):
            if varlen is not None and passes_trial(varlen, in_place, shape, dtype, device):
                return VarlenAttention(shape, dtype, device, varlen, in_place)
    return PagedAttention(shape, dtype, device)


def passes_trial(varlen: Varlen, in_place: bool, shape: CacheShape, dtype: torch.dtype, device: torch.device) -> bool:
    """Three rows (a prefill, a chunk after a past, one decoded token), with and without a window, against the plain path."""
    size = shape.page_size
    small = CacheShape(1, shape.kv_heads, shape.head_dim, pages=8, page_size=size)
    tables = np.array([[5, 0, 0], [1, 7, 2], [3, 6, 0]], np.int32)
    past = np.array([0, 2 * size, size], np.int32)
    batch = RaggedBatch(np.array([0, size, size + size // 2 + 1, size + size // 2 + 2], np.int32), past, tables, size)
    plain, tried = PagedAttention(small, dtype, device), VarlenAttention(small, dtype, device, varlen, in_place)
    noise = torch.Generator().manual_seed(0)

    def random(*sizes: int) -> Tensor:
        return (torch.rand(sizes, generator=noise) * 2 - 1).to(device, dtype)

    for store in ("keys", "values"):
        filled = random(*getattr(plain, store)[0].shape)
        getattr(plain, store)[0].copy_(filled)
        getattr(tried, store)[0].copy_(filled)
    tokens = int(batch.starts[-1])
    q = random(tokens + 3, shape.kv_heads * 2, shape.head_dim)  # three tokens of padding
    k, v = (random(tokens + 3, shape.kv_heads, shape.head_dim) for _ in range(2))
    try:
        for window in (None, max(2, size // 2)):
            spec = AttentionSpec(scale=shape.head_dim**-0.5, window=window)
            found = []
            for attention in (plain, tried):
                attention.begin(batch)
                found.append(attention.attend(0, q, k, v, spec))
            if not torch.allclose(found[0].float(), found[1].float(), atol=TRIAL_TOLERANCE, rtol=0):
                return False
    except (RuntimeError, ValueError, TypeError, NotImplementedError):  # refused: another card, head size or torch
        return False
    return True


def _torch_varlen() -> Varlen | None:
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:  # before torch 2.10
        return None
    return varlen_attn  # type: ignore[return-value]


def _activate_flash_3() -> bool:
    """FlashAttention 3 is a package of its own, for Hopper; torch's built-in kernels take no block table."""
    if importlib.util.find_spec("flash_attn_interface") is None:
        return False
    from torch.nn import attention

    try:
        attention.activate_flash_attention_impl("FA3")
    except (AttributeError, RuntimeError, ValueError, ImportError):
        return False
    return True
