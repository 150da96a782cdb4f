"""The linear layers of the decoder. What multiplies their weights is chosen here and nowhere else."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


def padded_rows(count: int) -> int:
    """The row count that a step of `count` tokens is padded to: few shapes, all of them probed."""
    return max(2, count)


class Linear(nn.Module):
    """y = x W^T + b. weight [out, in]; x [N, in] -> [N, out]."""

    def __init__(self, in_features: int, out_features: int, bias: bool = False) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = nn.Parameter(torch.empty(out_features, in_features), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(out_features), requires_grad=False) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight, self.bias)
