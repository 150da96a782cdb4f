"""Tiny GGUF files of the architectures that are read, written as llama.cpp's converter writes them, from a transformers model."""

import gguf
import numpy as np

TYPES = gguf.GGMLQuantizationType
NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "input_layernorm": "attn_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


SETTINGS = {
    "bos": "add_bos_token_id", "eos": "add_eos_token_id", "unk": "add_unk_token_id", "pad": "add_pad_token_id",
    "add_bos": "add_add_bos_token", "prefix": "add_add_space_prefix", "template": "add_chat_template",
}  # fmt: skip


def interleave(rows, heads):
    """Half-split rotary rows to pairs side by side, as GGUF's Llama has them."""
    return rows.reshape(heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def gguf_name(name, arch):
    if not name.startswith("model.layers."):
        return {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}[name]
    _, _, layer, rest = name.split(".", 3)
    after = {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
             "post_feedforward_layernorm": "post_ffw_norm"} if arch == "gemma3" else {"post_attention_layernorm": "ffn_norm"}  # fmt: skip
    return f"blk.{layer}.{(NAMES | after)[rest]}"


def write_gguf(file, model, arch, types=None, tokenizer=None, metadata=None, theta=None):
    """types: {end of a GGUF tensor name: storage type}, float32 otherwise. Returns file."""
    config = model.config
    writer = gguf.GGUFWriter(file, arch)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    writer.add_rope_freq_base(theta or rope["rope_theta"])
    writer.add_string("general.license", "mit")
    if arch == "gemma3":
        writer.add_sliding_window(config.sliding_window)
    for add, *values in metadata or []:
        getattr(writer, add)(*values)
    write_tokenizer(writer, tokenizer or byte_tokens(config.vocab_size))
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        add_tensor(writer, name, tensor.float().numpy(), config, arch, types or {})
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def add_tensor(writer, name, values, config, arch, types):
    stem, _, kind = name.rpartition(".")
    if arch == "llama" and stem.endswith(("q_proj", "k_proj")):
        values = interleave(values, config.num_attention_heads if stem.endswith("q_proj") else config.num_key_value_heads)
    if arch == "gemma3" and stem.endswith("norm"):
        values = values + 1
    target = f"{gguf_name(stem, arch)}.{kind}"
    wanted = next((type_ for end, type_ in types.items() if target.endswith(end)), TYPES.F32)
    data = gguf.quants.quantize(np.ascontiguousarray(values), wanted)
    writer.add_tensor(target, data, raw_dtype=wanted)


def byte_tokens(count):
    """A byte-level vocabulary with two merges: control tokens, joins, most of printable ASCII, then fillers."""
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "ab", "abc"] + [chr(code) for code in range(33, 125)]
    tokens = (tokens + [f"<filler{index}>" for index in range(count)])[:count]
    return {"model": "gpt2", "pre": "smollm", "tokens": tokens, "types": [3, 3, 3] + [1] * (count - 3), "merges": ["a b", "ab c"],
            "bos": 1, "eos": 2, "unk": 0, "pad": 2, "add_bos": False, "template": "{{ messages }}"}  # fmt: skip


def write_tokenizer(writer, data):
    writer.add_tokenizer_model(data["model"])
    if data.get("pre"):
        writer.add_tokenizer_pre(data["pre"])
    writer.add_token_list(data["tokens"])
    writer.add_token_types(data["types"])
    if "merges" in data:
        writer.add_token_merges(data["merges"])
    if "scores" in data:
        writer.add_token_scores(data["scores"])
    for key, add in SETTINGS.items():
        if key in data:
            getattr(writer, add)(data[key])
