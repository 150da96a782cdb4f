"""The table of model families: how each one's config.json becomes a ModelConfig. One function, one line, one parity test.

A family says only in what it differs from Llama; the decoder knows no family by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pipeline.model.config import LayerKind, ModelConfig, Reader, RotaryConfig

REFUSED = {
    "mixtral": "a mixture of experts, which is not supported yet",
    "qwen2_moe": "a mixture of experts, which is not supported yet",
    "qwen3_moe": "a mixture of experts, which is not supported yet",
    "deepseek_v3": "a mixture of experts, which is not supported yet",
    "gpt_oss": "a mixture of experts, which is not supported yet",
    "granitemoe": "a mixture of experts, which is not supported yet",
    "llama4": "a mixture of experts, which is not supported yet",
    "gemma3": "the image and text form of Gemma 3; only the text form, gemma3_text, is read",
    "gemma": "the first Gemma, which is not supported",
}

_GEMMA = {
    "head_dim": 256, "num_key_value_heads": 4, "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True,
    "sliding_window": 4096, "query_pre_attn_scalar": 256,
}  # fmt: skip
LEFT_OUT: dict[str, dict[str, Any]] = {  # what a key means that config.json leaves out, where that is not what it means for Llama
    "mistral": {"num_key_value_heads": 8, "sliding_window": 4096, "max_position_embeddings": 131072},
    "qwen2": {"num_key_value_heads": 32, "max_position_embeddings": 32768},
    "qwen3": {"num_key_value_heads": 32, "max_position_embeddings": 32768, "head_dim": 128},
    "gemma2": _GEMMA | {"max_position_embeddings": 8192, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    "gemma3_text": _GEMMA | {"max_position_embeddings": 131072, "rope_theta": 1e6},
    "phi3": {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5},
    "smollm3": {"num_key_value_heads": 4, "max_position_embeddings": 32768, "rope_theta": 2e6, "tie_word_embeddings": True},
    "olmo2": {"rms_norm_eps": 1e-5},
}


def _build(config: Reader, kinds: list[LayerKind] | None = None, rotaries: tuple[RotaryConfig, ...] | None = None,
           **changes: Any) -> ModelConfig:  # fmt: skip
    """The shared fields, the layer kinds (default: all full attention with the one rotary) and a family's own changes."""
    dimensions = config.dimensions()
    return ModelConfig(
        **dimensions,
        layer_kinds=tuple(kinds or [LayerKind()] * dimensions["layers"]),
        rotaries=rotaries or (config.rotary(),),
        tied=config.flag("tie_word_embeddings"),
        **changes,
    )


def _windows(config: Reader, default: list[str], window: int | None) -> list[LayerKind]:
    """Layer kinds where sliding layers see `window` tokens."""
    kinds = config.layer_types(default)
    if window is None and "sliding_attention" in kinds:
        raise config.refuse("layer_types names sliding_attention, but there is no sliding_window")
    return [LayerKind(window if kind == "sliding_attention" else None) for kind in kinds]


def _window(config: Reader) -> int | None:
    return None if config.raw.get("sliding_window") is None else config.count("sliding_window")


def llama(config: Reader) -> ModelConfig:
    bias = config.flag("attention_bias")
    return _build(config, qkv_bias=bias, out_bias=bias, mlp_bias=config.flag("mlp_bias"))


def mistral(config: Reader) -> ModelConfig:
    window = _window(config)
    kind = "full_attention" if window is None else "sliding_attention"
    return _build(config, _windows(config, [kind] * config.count("num_hidden_layers"), window))


def _qwen_windows(config: Reader) -> list[LayerKind]:
    """Layers from max_window_layers on slide, if use_sliding_window says so at all."""
    layers = config.count("num_hidden_layers")
    window = _window(config) if config.flag("use_sliding_window") else None
    first = int(config.number("max_window_layers", 28))
    default = ["sliding_attention" if window is not None and layer >= first else "full_attention" for layer in range(layers)]
    return _windows(config, default, window)


def qwen2(config: Reader) -> ModelConfig:
    return _build(config, _qwen_windows(config), qkv_bias=True)


def qwen3(config: Reader) -> ModelConfig:
    bias = config.flag("attention_bias")
    return _build(config, _qwen_windows(config), qkv_bias=bias, out_bias=bias, qk_norm="head")


def gemma2(config: Reader) -> ModelConfig:
    layers = config.count("num_hidden_layers")
    default = ["full_attention" if layer % 2 else "sliding_attention" for layer in range(layers)]
    return _build(config, _windows(config, default, _window(config)), attention_softcap=config.optional("attn_logit_softcapping"),
                  final_softcap=config.optional("final_logit_softcapping"), **_gemma(config))  # fmt: skip


def gemma3(config: Reader) -> ModelConfig:
    """Sliding layers have their own rotary base and no scaling; q and k are normalised."""
    layers, every = config.count("num_hidden_layers"), config.count("sliding_window_pattern", 6)
    default = ["sliding_attention" if (layer + 1) % every else "full_attention" for layer in range(layers)]
    kinds = [LayerKind(kind.window, 1 if kind.window is not None else 0) for kind in _windows(config, default, _window(config))]
    nested = config.raw.get("rope_parameters") or {}
    if "full_attention" in nested:
        full, sliding = (dict(nested.get(kind) or {}) for kind in ("full_attention", "sliding_attention"))
    else:
        full = config.rope_dict()
        sliding = {"rope_type": "default"}
    sliding.setdefault("rope_theta", config.number("rope_local_base_freq", 10000.0))
    rotaries = (config.rotary(full), config.rotary(sliding))
    return _build(config, kinds, rotaries, qk_norm="head", attention_softcap=config.optional("attn_logit_softcapping"),
                  final_softcap=config.optional("final_logit_softcapping"), **_gemma(config))  # fmt: skip


def _gemma(config: Reader) -> dict[str, Any]:
    if config.flag("use_bidirectional_attention"):
        raise config.refuse("use_bidirectional_attention makes this an encoder; it cannot generate")
    bias = config.flag("attention_bias")
    return {
        "norms": "both", "norm_offset": 1.0, "qkv_bias": bias, "out_bias": bias,
        "embedding_scale": config.count("hidden_size") ** 0.5,
        "attention_scale": config.number("query_pre_attn_scalar") ** -0.5,
    }  # fmt: skip


def phi3(config: Reader) -> ModelConfig:
    window = _window(config)
    return _build(config, [LayerKind(window)] * config.count("num_hidden_layers"), fused=True)


def smollm3(config: Reader) -> ModelConfig:
    """Every fourth layer has no rotary; where windows are on, those without rotary slide."""
    layers, every = config.count("num_hidden_layers"), config.count("no_rope_layer_interval", 4)
    turns = config.raw.get("no_rope_layers") or [int((layer + 1) % every != 0) for layer in range(layers)]
    if len(turns) < layers:
        raise config.refuse(f"no_rope_layers has {len(turns)} entries for {layers} layers")
    window = _window(config) if config.flag("use_sliding_window") else None
    default = ["sliding_attention" if window is not None and not turn else "full_attention" for turn in turns[:layers]]
    kinds = [LayerKind(kind.window, 0 if turn else None) for kind, turn in zip(_windows(config, default, window), turns)]
    bias = config.flag("attention_bias")
    return _build(config, kinds, qkv_bias=bias, out_bias=bias, mlp_bias=config.flag("mlp_bias"))


def olmo2(config: Reader) -> ModelConfig:
    bias = config.flag("attention_bias")
    return _build(config, qkv_bias=bias, out_bias=bias, qk_norm="all", norms="after")


def granite(config: Reader) -> ModelConfig:
    bias = config.flag("attention_bias")
    return _build(
        config, qkv_bias=bias, out_bias=bias, mlp_bias=config.flag("mlp_bias"),
        embedding_scale=config.number("embedding_multiplier", 1.0), residual_scale=config.number("residual_multiplier", 1.0),
        attention_scale=config.number("attention_multiplier", 1.0), logits_divisor=config.number("logits_scaling", 1.0),
    )  # fmt: skip


FAMILIES: dict[str, Callable[[Reader], ModelConfig]] = {
    "llama": llama,
    "mistral": mistral,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "gemma2": gemma2,
    "gemma3_text": gemma3,
    "phi3": phi3,
    "smollm3": smollm3,
    "olmo2": olmo2,
    "granite": granite,
}
