"""Attention as the decoder sees it: one call per layer, whatever cache lies behind.

N tokens of all sequences together  H query heads  K KV heads  D head dim
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """What one layer asks of attention."""

    scale: float
    window: int | None = None  # a query sees the last `window` keys, itself included; None: all
    softcap: float | None = None  # logits become softcap * tanh(logits / softcap)


class Attention(Protocol):
    """Stores this step's keys and values and attends over all that each token may see."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> Tensor:
        """q [N, H, D]; k, v [N, K, D] -> [N, H, D]."""
        ...


class FullAttention:
    """Cache-free causal attention over one whole sequence: the oracle's. N is its length, positions 0..N-1."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> Tensor:
        groups = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(groups, dim=1).transpose(0, 1) for x in (k, v))  # [H, N, D]
        scores = q.transpose(0, 1) @ k.transpose(1, 2) * spec.scale  # [H, N, N]
        if spec.softcap is not None:
            scores = spec.softcap * torch.tanh(scores / spec.softcap)
        place = torch.arange(q.shape[0], device=q.device)
        hidden = place[None, :] > place[:, None]
        if spec.window is not None:
            hidden |= place[None, :] <= place[:, None] - spec.window
        scores = scores.masked_fill(hidden, float("-inf")).to(torch.promote_types(q.dtype, torch.float32))
        weights = functional.softmax(scores, dim=-1).to(q.dtype)
        return (weights @ v).transpose(0, 1)
