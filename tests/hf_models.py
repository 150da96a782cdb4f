"""Tiny random checkpoints of every family, written by transformers, which is also the parity reference."""

import torch
import transformers
from torch import nn

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

SHAPE = {
    "vocab_size": 97, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 4, "num_attention_heads": 6,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
LONGROPE = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0, 1.1, 1.2, 1.4], "long_factor": [1.0, 2.0, 3.0, 5.0],
            "original_max_position_embeddings": 32}  # fmt: skip
PARTIAL = LONGROPE | {"partial_rotary_factor": 0.75, "short_factor": [1.0, 1.1, 1.3], "long_factor": [1.0, 2.0, 3.0]}
CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**SHAPE),
    "llama-biases-tied-wide-heads": lambda: transformers.LlamaConfig(
        **SHAPE, attention_bias=True, mlp_bias=True, tie_word_embeddings=True, head_dim=16),
    "llama-linear": lambda: transformers.LlamaConfig(
        **SHAPE, rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}),
    "llama-llama3": lambda: transformers.LlamaConfig(**SHAPE, rope_parameters=LLAMA3),
    "llama-yarn": lambda: transformers.LlamaConfig(**SHAPE, rope_parameters=dict(YARN)),
    "llama-yarn-mscale": lambda: transformers.LlamaConfig(
        **SHAPE, rope_parameters=YARN | {"mscale": 1.0, "mscale_all_dim": 0.7, "beta_fast": 16.0, "beta_slow": 2.0, "truncate": False}),
    "mistral": lambda: transformers.MistralConfig(**SHAPE, sliding_window=16, head_dim=16),
    "mistral-no-window": lambda: transformers.MistralConfig(**SHAPE, sliding_window=None),
    "qwen2": lambda: transformers.Qwen2Config(**SHAPE),
    "qwen2-windows": lambda: transformers.Qwen2Config(**SHAPE, use_sliding_window=True, sliding_window=16, max_window_layers=2),
    "qwen3": lambda: transformers.Qwen3Config(**SHAPE, head_dim=16),
    "qwen3-yarn-windows-biases": lambda: transformers.Qwen3Config(
        **SHAPE, head_dim=16, rope_parameters=dict(YARN), attention_bias=True, use_sliding_window=True, sliding_window=16,
        max_window_layers=2),
    "gemma2": lambda: transformers.Gemma2Config(**SHAPE, head_dim=16, sliding_window=16, query_pre_attn_scalar=24),
    "gemma3": lambda: transformers.Gemma3TextConfig(
        **SHAPE | {"num_hidden_layers": 7}, head_dim=16, sliding_window=16, query_pre_attn_scalar=24),
    "gemma3-linear": lambda: transformers.Gemma3TextConfig(
        **SHAPE | {"num_hidden_layers": 7}, head_dim=16, sliding_window=16, rope_parameters={
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}),
    "phi3": lambda: transformers.Phi3Config(**SHAPE, sliding_window=20),
    "phi3-partial": lambda: transformers.Phi3Config(
        **SHAPE, rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}),
    "phi4-mini": lambda: transformers.Phi3Config(
        **SHAPE, rope_parameters=PARTIAL,
        partial_rotary_factor=0.75, original_max_position_embeddings=32, tie_word_embeddings=True),
    "phi3-longrope": lambda: transformers.Phi3Config(**SHAPE, rope_parameters=LONGROPE, original_max_position_embeddings=32),
    "smollm3": lambda: transformers.SmolLM3Config(**SHAPE),
    "smollm3-windows-biases": lambda: transformers.SmolLM3Config(
        **SHAPE, use_sliding_window=True, sliding_window=16, attention_bias=True, mlp_bias=True),
    "olmo2": lambda: transformers.Olmo2Config(**SHAPE),
    "olmo2-yarn-biases": lambda: transformers.Olmo2Config(**SHAPE, rope_parameters=dict(YARN), attention_bias=True),
    "granite": lambda: transformers.GraniteConfig(
        **SHAPE, embedding_multiplier=6.0, residual_multiplier=0.5, attention_multiplier=0.2, logits_scaling=2.0),
    "granite-biases": lambda: transformers.GraniteConfig(**SHAPE, attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
}  # fmt: skip


def reference_model(name: str, seed: int = 0):
    """A float32 model of transformers whose attention is neither flat nor saturated, so that every detail shows in the logits."""
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[name](), attn_implementation="eager").float().eval()
    for parameter_name, parameter in model.named_parameters():
        if "embed_tokens" in parameter_name:
            nn.init.normal_(parameter, std=0.2)
        elif parameter.ndim == 2:
            nn.init.normal_(parameter, std=1.2 * parameter.shape[1] ** -0.5)
        else:
            nn.init.uniform_(parameter, 0.5, 1.5) if "norm" in parameter_name and "gemma" not in name else nn.init.normal_(
                parameter, std=0.3
            )
    return model


def save(model, folder):
    model.save_pretrained(folder)
    return folder
