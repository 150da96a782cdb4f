"""GGUF weights and metadata as a Hugging Face config and float32 tensors. Knows no files but the one GGUF it reads.

Traps, all met in real files: shapes are written reversed; types are mixed in one file; Llama's q and k rows are interleaved per
head and k counts the KV heads; Gemma's norms have their 1 added already; a missing output matrix means a tied head; numbers are
float32 and read back as 9.999999e-06; Llama 3 hides its rotary scaling in a tensor.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from torch import Tensor

from pipeline.core.errors import MissingInput, ModelError


@dataclass(frozen=True)
class Architecture:
    """How one GGUF architecture is named here, and what its converter did to the weights."""

    model_type: str
    class_name: str  # as other programs that read config.json expect it
    interleaved: bool = False  # q and k rows hold rotary pairs side by side
    norm_offset: float = 0.0  # what was added to norm weights
    ffn_norm: str = "post_attention_layernorm"


ARCHITECTURES = {
    "llama": Architecture("llama", "LlamaForCausalLM", interleaved=True),
    "qwen2": Architecture("qwen2", "Qwen2ForCausalLM"),
    "qwen3": Architecture("qwen3", "Qwen3ForCausalLM"),
    "gemma3": Architecture("gemma3_text", "Gemma3ForCausalLM", norm_offset=1.0, ffn_norm="pre_feedforward_layernorm"),
}
OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
INSIDE = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
COMPUTED = ("rope_freqs.weight",)


class GgufFile:
    """One GGUF file: metadata, config, and tensors under their Hugging Face names."""

    def __init__(self, file: Path) -> None:
        if not file.is_file():
            raise MissingInput(f"{file}: no such file")
        self.file = file
        try:
            self._reader = gguf.GGUFReader(file)
        except (ValueError, IndexError, KeyError, OverflowError) as error:
            raise ModelError(f"{file}: not a readable GGUF file ({error}); is the download complete?") from None
        name = self.get("general.architecture")
        if name not in ARCHITECTURES:
            raise ModelError(f"{file}: GGUF architecture {name!r} is not read; known: {', '.join(ARCHITECTURES)}")
        if self.get(f"{name}.expert_count"):
            raise ModelError(f"{file}: a mixture of experts, which is not supported yet")
        self.name, self.architecture = name, ARCHITECTURES[name]
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}

    def get(self, key: str, default: Any = None) -> Any:
        """A metadata value as plain Python data; float32 numbers in their shortest form (1e-05, not 9.999999e-06)."""
        field = self._reader.fields.get(key)
        if field is None:
            return default
        value = field.contents()
        return float(str(np.float32(value))) if field.types[-1] == gguf.GGUFValueType.FLOAT32 and not isinstance(value, list) else value

    def _own(self, key: str, default: Any = None) -> Any:
        """A value of this architecture; a list of equal numbers, one per layer, counts as that number."""
        value = self.get(f"{self.name}.{key}", default)
        if isinstance(value, list):
            if len(set(value)) != 1:
                raise ModelError(f"{self.file}: {key} differs from layer to layer, which is not supported")
            value = value[0]
        if value is None:
            raise ModelError(f"{self.file}: metadata has no {self.name}.{key}")
        return value

    def config(self) -> dict[str, Any]:
        """config.json for this file, without dtype."""
        hidden, heads = self._own("embedding_length"), self._own("attention.head_count")
        config = {
            "architectures": [self.architecture.class_name], "model_type": self.architecture.model_type, "hidden_size": hidden,
            "num_hidden_layers": self._own("block_count"), "intermediate_size": self._own("feed_forward_length"),
            "num_attention_heads": heads, "num_key_value_heads": self._own("attention.head_count_kv", heads),
            "head_dim": self._own("attention.key_length", hidden // heads), "vocab_size": self._rows("token_embd.weight"),
            "max_position_embeddings": self._own("context_length"), "rms_norm_eps": self._own("attention.layer_norm_rms_epsilon"),
            "rope_theta": self._own("rope.freq_base", 10000.0), "tie_word_embeddings": "output.weight" not in self._tensors,
            "hidden_act": "silu", "attention_bias": "blk.0.attn_q.bias" in self._tensors,
            "mlp_bias": "blk.0.ffn_up.bias" in self._tensors,
            "bos_token_id": self.get("tokenizer.ggml.bos_token_id"), "eos_token_id": self.get("tokenizer.ggml.eos_token_id"),
        }  # fmt: skip
        rotated = self._own("rope.dimension_count", config["head_dim"])
        if rotated != config["head_dim"]:
            config["partial_rotary_factor"] = rotated / config["head_dim"]
        config["rope_scaling"] = self._rope_scaling(config)
        if self.name == "gemma3":
            self._gemma3(config)
        return {key: value for key, value in config.items() if value is not None}

    def _gemma3(self, config: dict[str, Any]) -> None:
        """Only the 27B model scales queries by hidden / heads; that rule is in no metadata."""
        wide = config["num_hidden_layers"] == 62
        config |= {
            "hidden_activation": "gelu_pytorch_tanh", "sliding_window": self._own("attention.sliding_window"),
            "rope_local_base_freq": 10000.0, "sliding_window_pattern": 6,
            "query_pre_attn_scalar": config["hidden_size"] // config["num_attention_heads"] if wide else config["head_dim"],
        }  # fmt: skip
        del config["hidden_act"]

    def _rope_scaling(self, config: dict[str, Any]) -> dict[str, Any] | None:
        if "rope_freqs.weight" in self._tensors:
            return self._llama3_scaling(config)
        kind = self.get(f"{self.name}.rope.scaling.type", "none")
        if kind == "none":
            return None
        if kind not in ("linear", "yarn"):
            raise ModelError(f"{self.file}: rotary scaling {kind!r} is not known in GGUF files")
        scaling = {"rope_type": kind, "factor": self._own("rope.scaling.factor")}
        original = self.get(f"{self.name}.rope.scaling.original_context_length")
        return scaling | ({"original_max_position_embeddings": original} if original else {})

    def _llama3_scaling(self, config: dict[str, Any]) -> dict[str, Any]:
        """The factors are stored one per frequency; they must be those of Llama 3.1 and later, with whatever factor."""
        stored = self.tensor_as_stored("rope_freqs.weight")
        factor = round(float(stored.max()), 4)
        low, high, original = 1.0, 4.0, 8192
        exponents = torch.arange(0, config["head_dim"], 2).float() / config["head_dim"]
        turns = original / (2 * math.pi * config["rope_theta"] ** exponents)
        smooth = ((turns - low) / (high - low)).clamp(0, 1)
        if not torch.allclose(stored, 1 / ((1 - smooth) / factor + smooth), rtol=1e-4):
            raise ModelError(f"{self.file}: rope_freqs are not those of the llama3 rule; this scaling is not known")
        return {"rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high,
                "original_max_position_embeddings": original}  # fmt: skip

    def tensor_types(self) -> list[str]:
        """Names of the storage types in the file, sorted."""
        return sorted({gguf.GGMLQuantizationType(tensor.tensor_type).name for tensor in self._tensors.values()})

    def _rows(self, name: str) -> int:
        if name not in self._tensors:
            raise ModelError(f"{self.file}: there is no tensor {name}")
        return int(self._tensors[name].shape[-1])

    def sizes(self) -> dict[str, int]:
        """Number of values of every tensor, by Hugging Face name, in file order."""
        return {self.hf_name(name): int(np.prod(t.shape)) for name, t in self._tensors.items() if name not in COMPUTED}

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor as float32 [rows, columns] under its Hugging Face name, one at a time, in file order."""
        heads, kv_heads = self._own("attention.head_count"), self._own("attention.head_count_kv", self._own("attention.head_count"))
        for name in self._tensors:
            if name in COMPUTED:
                continue
            values, target = self.tensor_as_stored(name), self.hf_name(name)
            if self.architecture.interleaved and re.search(r"\.attn_[qk]\.(weight|bias)$", name):
                values = split_halves(values, heads if ".attn_q." in name else kv_heads)
            if self.architecture.norm_offset and name.endswith("norm.weight"):
                values = values - self.architecture.norm_offset
            yield target, values

    def tensor_as_stored(self, name: str) -> Tensor:
        """One tensor by its GGUF name, dequantised to float32, outer axis first."""
        tensor = self._tensors[name]
        try:
            values = gguf.dequantize(tensor.data, tensor.tensor_type)
        except (NotImplementedError, ValueError) as error:
            kind = gguf.GGMLQuantizationType(tensor.tensor_type).name
            raise ModelError(f"{self.file}: tensor {name} has type {kind}, which cannot be read ({error})") from None
        return torch.from_numpy(np.array(values, dtype=np.float32)).reshape([int(side) for side in reversed(tensor.shape)])

    def hf_name(self, name: str) -> str:
        """model.layers.3.mlp.up_proj.weight for blk.3.ffn_up.weight. Raises ModelError for a name not known."""
        stem, _, kind = name.rpartition(".")
        if stem in OUTSIDE:
            return f"{OUTSIDE[stem]}.{kind}"
        block = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
        inside = INSIDE | {"ffn_norm": self.architecture.ffn_norm}
        if not block or block[2] not in inside:
            raise ModelError(f"{self.file}: tensor {name} has no place in a {self.architecture.model_type}")
        return f"model.layers.{block[1]}.{inside[block[2]]}.{kind}"


def split_halves(rows: Tensor, heads: int) -> Tensor:
    """Rotary pairs side by side (0 1, 2 3, ...) to the half-split order (0 D/2, 1 D/2+1, ...), for each head."""
    return rows.reshape(heads, -1, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)
