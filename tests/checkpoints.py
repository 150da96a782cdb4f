"""Small checkpoints for tests, written from a seed: random weights, a trained byte-level tokenizer, a chat template.

Also used by hand-run harnesses; needs no torch and no network.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
TRAINING_TEXT = (
    "The river runs past the mill and the baker opens the window before seven.",
    "A green lamp stands beside the quiet engine; paper boats drift under the bridge.",
    "What is the capital of the country? Count the stones, then say the number.",
    "山下的河水很清，月亮照着石桥。今天的面包是谁烤的？",
    "user system assistant 0 1 2 3 4 5 6 7 8 9",
)


def write_tiny_llama(folder: Path, *, seed: int = 0, vocab: int = 320, max_model_len: int = 512, **config: Any) -> Path:
    """A two-layer Llama with grouped heads in float32, about 100 KB. `config` overrides keys of config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = tiny_tokenizer(vocab)
    settings: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 64,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "hidden_act": "silu",
        "vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": max_model_len, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "rope_scaling": None, "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False,
        "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "dtype": "float32",
    } | config  # fmt: skip
    _write_json(folder / "config.json", settings)
    _write_json(folder / "generation_config.json", {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0})
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": SPECIAL[1], "eos_token": SPECIAL[2], "pad_token": SPECIAL[0],
            "unk_token": None, "model_max_length": max_model_len, "clean_up_tokenization_spaces": False, "chat_template": CHAT_TEMPLATE,
        },
    )  # fmt: skip
    write_weights(folder, settings, seed)
    return folder


def write_weights(folder: Path, settings: dict[str, Any], seed: int) -> None:
    """model.safetensors of a Llama with these settings: normal draws wide enough that greedy answers differ by prompt."""
    rng = np.random.default_rng(seed)
    hidden, ff, head = settings["hidden_size"], settings["intermediate_size"], settings["head_dim"]
    q, kv, vocab = settings["num_attention_heads"] * head, settings["num_key_value_heads"] * head, settings["vocab_size"]
    shapes = {"model.embed_tokens.weight": (vocab, hidden), "lm_head.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    for layer in range(settings["num_hidden_layers"]):
        name = f"model.layers.{layer}."
        shapes |= {
            name + "input_layernorm.weight": (hidden,), name + "post_attention_layernorm.weight": (hidden,),
            name + "self_attn.q_proj.weight": (q, hidden), name + "self_attn.k_proj.weight": (kv, hidden),
            name + "self_attn.v_proj.weight": (kv, hidden), name + "self_attn.o_proj.weight": (hidden, q),
            name + "mlp.gate_proj.weight": (ff, hidden), name + "mlp.up_proj.weight": (ff, hidden),
            name + "mlp.down_proj.weight": (hidden, ff),
        }  # fmt: skip
    if settings["tie_word_embeddings"]:
        del shapes["lm_head.weight"]
    tensors = {}
    for name, shape in sorted(shapes.items()):
        draw = rng.standard_normal(shape)
        tensors[name] = (1 + 0.1 * draw if len(shape) == 1 else draw * 1.5 / np.sqrt(shape[1])).astype(np.float32)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def tiny_tokenizer(vocab: int = 320) -> Tokenizer:
    """Byte-level BPE with a few dozen merges: every text round-trips, some characters and words span several tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken(token, special=True, normalized=False) for token in SPECIAL]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=special, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    tokenizer.train_from_iterator(TRAINING_TEXT, trainer)
    return tokenizer


def _write_json(file: Path, data: dict[str, Any]) -> None:
    file.write_text(json.dumps(data, indent=2, sort_keys=True) + "\n", encoding="utf-8")
