"""One decoder for all families: what differs between them is in ModelConfig, never in a branch on a name.

N tokens of all sequences together  M rows whose logits are wanted  H query heads  K KV heads  D head dim  E hidden
F feed-forward  V vocabulary
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.model import row_kernels
from pipeline.model.attention import Attention, AttentionSpec
from pipeline.model.config import LayerKind, ModelConfig
from pipeline.model.linear import Linear
from pipeline.model.rotary import Rotary, rotate

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
}
Tables = tuple[Tensor, Tensor]


class RMSNorm(nn.Module):
    """Root mean square norm (Zhang and Sennrich, 2019, arXiv 1910.07467) over the last axis, computed in float32 or wider."""

    def __init__(self, size: int, eps: float, offset: float) -> None:
        super().__init__()
        self.eps, self.offset = eps, offset
        self.weight = nn.Parameter(torch.empty(size), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        compiled = row_kernels.rms_norm(x, self.weight, self.offset, self.eps)
        if compiled is not None:
            return compiled
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * (self.weight.to(wide.dtype) + self.offset)).to(x.dtype)


class Embedding(nn.Module):
    """Rows of the embedding; weight [V, E]."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, width), requires_grad=False)

    def forward(self, token_ids: Tensor) -> Tensor:
        return functional.embedding(token_ids, self.weight)


class SelfAttention(nn.Module):
    """Queries, keys and values from one matrix, normed, turned, attended, mixed by `out`."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.layer, self.heads, self.kv_heads, self.head_dim = layer, config.heads, config.kv_heads, config.head_dim
        kind = config.layer_kinds[layer]
        self.spec = AttentionSpec(config.attention_scale, kind.window, config.attention_softcap)
        self.qkv = Linear(config.hidden, (config.heads + 2 * config.kv_heads) * config.head_dim, config.qkv_bias)
        self.out = Linear(config.heads * config.head_dim, config.hidden, config.out_bias)
        self.over_all_heads = config.qk_norm == "all"
        self.q_norm = self.k_norm = None
        if config.qk_norm != "none":
            widths = (config.heads * config.head_dim, config.kv_heads * config.head_dim) if self.over_all_heads else (config.head_dim,) * 2
            self.q_norm, self.k_norm = (RMSNorm(width, config.eps, config.norm_offset) for width in widths)

    def forward(self, x: Tensor, tables: Tables | None, attention: Attention) -> Tensor:
        q, k, v = self.qkv(x).split([heads * self.head_dim for heads in (self.heads, self.kv_heads, self.kv_heads)], dim=-1)
        if self.over_all_heads:
            q, k = self._normed(q, k)
        q, k, v = (y.unflatten(-1, (-1, self.head_dim)) for y in (q, k, v))  # [N, H or K, D]
        if not self.over_all_heads:
            q, k = self._normed(q, k)
        if tables is not None:
            q, k = rotate(q, tables), rotate(k, tables)
        out: Tensor = self.out(attention.attend(self.layer, q, k, v, self.spec).flatten(1))
        return out

    def _normed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return (q, k) if self.q_norm is None or self.k_norm is None else (self.q_norm(q), self.k_norm(k))


class FeedForward(nn.Module):
    """Gated feed-forward (Shazeer, 2020, arXiv 2002.05202), gate and up from one matrix."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_up = Linear(config.hidden, 2 * config.ffn, config.mlp_bias)
        self.down = Linear(config.ffn, config.hidden, config.mlp_bias)
        self.activation = config.activation

    def forward(self, x: Tensor) -> Tensor:
        gate_up = self.gate_up(x)
        gated = row_kernels.silu_gate(gate_up) if self.activation == "silu" else None
        if gated is None:
            gate, up = gate_up.chunk(2, dim=-1)
            gated = ACTIVATIONS[self.activation](gate) * up
        out: Tensor = self.down(gated)
        return out


class Layer(nn.Module):
    """Attention and feed-forward, each added to the stream; norms stand before, after, or on both sides."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        before, after = config.norms in ("before", "both"), config.norms in ("after", "both")

        def norm(present: bool) -> nn.Module:
            return RMSNorm(config.hidden, config.eps, config.norm_offset) if present else nn.Identity()

        self.kind: LayerKind = config.layer_kinds[layer]
        self.residual_scale = config.residual_scale
        self.attention_in, self.attention_out = norm(before), norm(after)
        self.attention = SelfAttention(config, layer)
        self.ffn_in, self.ffn_out = norm(before), norm(after)
        self.ffn = FeedForward(config)

    def forward(self, x: Tensor, tables: list[Tables], attention: Attention) -> Tensor:
        turn = None if self.kind.rotary is None else tables[self.kind.rotary]
        x = self._add(x, self.attention_out(self.attention(self.attention_in(x), turn, attention)))
        return self._add(x, self.ffn_out(self.ffn(self.ffn_in(x))))

    def _add(self, x: Tensor, y: Tensor) -> Tensor:
        return x + (y if self.residual_scale == 1.0 else y * self.residual_scale)


class Decoder(nn.Module):
    """Token ids in, logits out, for the tokens of many sequences lying flat in one axis.

    usable_vocab: token ids the tokenizer has; the rows of the head above are padding and are never sampled.
    """

    def __init__(self, config: ModelConfig, usable_vocab: int | None = None) -> None:
        super().__init__()
        self.config = config
        self.usable_vocab = config.vocab_size if usable_vocab is None else usable_vocab
        self.embedding: nn.Module = Embedding(config.vocab_size, config.hidden)
        self.rotaries = nn.ModuleList(Rotary(rotary) for rotary in config.rotaries)
        self.layers = nn.ModuleList(Layer(config, layer) for layer in range(config.layers))
        self.norm = RMSNorm(config.hidden, config.eps, config.norm_offset)
        self.head: nn.Module = Linear(config.hidden, config.vocab_size)
        if config.tied:
            self.head.weight = self.embedding.weight

    @property
    def dtype(self) -> torch.dtype:
        """The type of activations and logits."""
        return self.norm.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.norm.weight.device

    @torch.inference_mode()
    def forward(self, token_ids: Tensor, positions: Tensor, attention: Attention, logits_at: Tensor) -> Tensor:
        """token_ids, positions int64 [N]; logits_at int64 [M], rows of N whose logits are wanted -> [M, V] in model dtype.

        `attention` alone knows which tokens belong to one sequence; see model/attention.py.
        """
        x: Tensor = self.embedding(token_ids)
        if self.config.embedding_scale != 1.0:
            x = x * torch.tensor(self.config.embedding_scale, dtype=x.dtype, device=x.device)
        tables = [rotary.tables(positions, x.dtype) for rotary in self.rotaries]  # type: ignore[operator, union-attr]
        for layer in self.layers:
            x = layer(x, tables, attention)
        return self.logits(x[logits_at])

    def logits(self, x: Tensor) -> Tensor:
        """The stream after the last layer [M, E] -> logits [M, V]."""
        logits: Tensor = self.head(self.norm(x))
        if self.config.logits_divisor != 1.0:
            logits = logits / self.config.logits_divisor
        cap = self.config.final_softcap
        return logits if cap is None else cap * torch.tanh(logits / cap)
