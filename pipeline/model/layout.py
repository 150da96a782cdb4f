"""Which tensor of the files goes where in the decoder: names and shapes only.

q, k and v lie in one matrix of the decoder, and so do gate and up, so that a layer is four multiplications instead of seven;
files have them apart (most families) or already together (Phi-3).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.model.config import ModelConfig

IGNORED_ENDINGS = (".rotary_emb.inv_freq",)  # older checkpoints store them; they are computed


@dataclass(frozen=True)
class Piece:
    """One tensor of the files and its place: rows [start, start + shape[0]) of a parameter of the decoder."""

    source: str
    shape: tuple[int, ...]
    target: str
    start: int = 0


def pieces(config: ModelConfig) -> Iterator[Piece]:
    """Every tensor a checkpoint of this config must hold, embedding first, layer by layer, norm and head last."""
    yield Piece("model.embed_tokens.weight", (config.vocab_size, config.hidden), "embedding.weight")
    for layer in range(config.layers):
        yield from _layer(config, f"model.layers.{layer}.", f"layers.{layer}.")
    yield Piece("model.norm.weight", (config.hidden,), "norm.weight")
    if not config.tied:
        yield Piece("lm_head.weight", (config.vocab_size, config.hidden), "head.weight")


def _layer(config: ModelConfig, source: str, target: str) -> Iterator[Piece]:
    hidden, ffn, q, kv = config.hidden, config.ffn, config.heads * config.head_dim, config.kv_heads * config.head_dim
    attention, mlp = source + "self_attn.", source + "mlp."
    if config.fused:
        yield from _stack({attention + "qkv_proj": q + 2 * kv}, hidden, target + "attention.qkv", config.qkv_bias)
        yield from _stack({mlp + "gate_up_proj": 2 * ffn}, hidden, target + "ffn.gate_up", config.mlp_bias)
    else:
        apart = {attention + "q_proj": q, attention + "k_proj": kv, attention + "v_proj": kv}
        yield from _stack(apart, hidden, target + "attention.qkv", config.qkv_bias)
        yield from _stack({mlp + "gate_proj": ffn, mlp + "up_proj": ffn}, hidden, target + "ffn.gate_up", config.mlp_bias)
    yield from _stack({attention + "o_proj": hidden}, q, target + "attention.out", config.out_bias)
    yield from _stack({mlp + "down_proj": hidden}, ffn, target + "ffn.down", config.mlp_bias)
    if config.qk_norm != "none":
        q_width, k_width = (q, kv) if config.qk_norm == "all" else (config.head_dim, config.head_dim)
        yield Piece(attention + "q_norm.weight", (q_width,), target + "attention.q_norm.weight")
        yield Piece(attention + "k_norm.weight", (k_width,), target + "attention.k_norm.weight")
    for name, place in NORMS[config.norms].items():
        yield Piece(f"{source}{name}.weight", (hidden,), f"{target}{place}.weight")


NORMS = {
    "before": {"input_layernorm": "attention_in", "post_attention_layernorm": "ffn_in"},
    "after": {"post_attention_layernorm": "attention_out", "post_feedforward_layernorm": "ffn_out"},
    "both": {
        "input_layernorm": "attention_in", "post_attention_layernorm": "attention_out",
        "pre_feedforward_layernorm": "ffn_in", "post_feedforward_layernorm": "ffn_out",
    },
}  # fmt: skip


def _stack(sources: dict[str, int], width: int, target: str, bias: bool) -> Iterator[Piece]:
    """Matrices of `width` columns stacked by rows into one, and their biases."""
    start = 0
    for name, rows in sources.items():
        yield Piece(name + ".weight", (rows, width), target + ".weight", start)
        if bias:
            yield Piece(name + ".bias", (rows,), target + ".bias", start)
        start += rows
