"""Every family against transformers: logits in float32 and greedy tokens, past the window and past the original rotary length."""

import json

import pytest
import torch
from hf_models import CONFIGS, reference_model, save
from parity import NEW_TOKENS, compare

from pipeline.core.errors import ModelError
from pipeline.core.params import ModelParams
from pipeline.model.attention import FullAttention
from pipeline.model.config import read_config
from pipeline.model.families import FAMILIES
from pipeline.model.weights import load_decoder


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_and_greedy_tokens_equal_the_reference(name, tmp_path):
    difference, equal, _ = compare(name, tmp_path)
    assert difference < 1e-4
    assert equal == NEW_TOKENS


def test_every_family_has_a_parity_case():
    assert {CONFIGS[name]().model_type for name in CONFIGS} == set(FAMILIES)


def test_logits_are_given_for_the_wanted_rows_alone(tmp_path):
    decoder = load_decoder(save(reference_model("llama"), tmp_path))
    ids, positions = torch.arange(3, 15), torch.arange(12)
    every = decoder(ids, positions, FullAttention(), positions)
    torch.testing.assert_close(decoder(ids, positions, FullAttention(), torch.tensor([11, 3])), every[[11, 3]])


def test_longrope_uses_the_short_factors_when_the_run_stays_within_the_original_length(tmp_path):
    reference = reference_model("phi3-longrope")
    decoder = load_decoder(save(reference, tmp_path), ModelParams(max_model_len=32))
    ids, positions = torch.arange(3, 35), torch.arange(32)
    with torch.no_grad():
        expected = reference(ids[None]).logits[0]
    assert (decoder(ids, positions, FullAttention(), positions) - expected).abs().max() < 1e-4


def test_dynamic_rotary_is_stretched_to_the_longest_sequence_of_the_run(tmp_path):
    reference = reference_model("llama")
    reference.config.rope_parameters = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    reference.config.max_position_embeddings = 64
    save(reference, tmp_path)
    reference = type(reference).from_pretrained(tmp_path, attn_implementation="eager").eval()
    for length in (64, 100):  # as long as the training, and beyond it
        decoder = load_decoder(tmp_path, ModelParams(max_model_len=length))
        ids, positions = torch.randint(3, 97, (length,)), torch.arange(length)
        with torch.no_grad():
            expected = reference(ids[None]).logits[0]
        assert (decoder(ids, positions, FullAttention(), positions) - expected).abs().max() < 1e-4


OLD_SPELLING = {
    "llama-llama3": lambda raw: raw | {"rope_theta": raw["rope_parameters"].pop("rope_theta"), "rope_scaling": raw.pop("rope_parameters")},
    "phi3-longrope": lambda raw: raw | {"rope_theta": 10000.0, "rope_scaling": {
        "type": "su", "short_factor": raw["rope_parameters"]["short_factor"], "long_factor": raw.pop("rope_parameters")["long_factor"]}},
    "gemma3": lambda raw: {key: value for key, value in raw.items() if key not in ("rope_parameters", "layer_types")} | {
        "rope_theta": 1e6, "rope_local_base_freq": 10000.0, "sliding_window_pattern": 6, "rope_scaling": None},
    "gemma2": lambda raw: {key: value for key, value in raw.items() if key not in ("rope_parameters", "layer_types")},
    "qwen2-windows": lambda raw: {key: value for key, value in raw.items() if key not in ("rope_parameters", "layer_types")},
    "smollm3": lambda raw: {key: value for key, value in raw.items() if key not in ("layer_types", "no_rope_layers")},
}  # fmt: skip


@pytest.mark.parametrize("name", OLD_SPELLING)
def test_old_and_new_spelling_of_config_json_mean_the_same(name, tmp_path):
    config = CONFIGS[name]()
    config.save_pretrained(tmp_path)
    new = read_config(tmp_path)
    raw = json.loads((tmp_path / "config.json").read_text())
    raw["torch_dtype"] = raw.pop("dtype", None)
    (tmp_path / "config.json").write_text(json.dumps(OLD_SPELLING[name](raw)))
    assert read_config(tmp_path) == new


@pytest.mark.parametrize("name", CONFIGS)
def test_a_key_left_out_of_config_json_means_what_the_reference_takes_it_for(name, tmp_path):
    """Or it is refused; only stop ids are never guessed."""
    full = json.loads(CONFIGS[name]().to_json_string(use_diff=False))
    for key in sorted(set(full) - {"model_type", "eos_token_id"}):
        raw = {other: value for other, value in full.items() if other != key}
        ours = config_or_refusal(tmp_path, raw)
        if isinstance(ours, str):
            continue
        filled = json.loads(type(CONFIGS[name]()).from_dict(raw).to_json_string(use_diff=False))
        if key == "original_max_position_embeddings":  # the reference takes Phi-3's 4096 and not what rope_parameters say
            filled[key] = full[key]
        assert ours == config_or_refusal(tmp_path, filled), key


def config_or_refusal(folder, raw):
    (folder / "config.json").write_text(json.dumps(raw))
    try:
        return read_config(folder)
    except ModelError as error:
        return str(error)


@pytest.mark.parametrize(("changes", "words"), [
    ({"rope_scaling": {"rope_type": "spiral", "factor": 2}}, "rotary kind 'spiral' is not known"),
    ({"rope_scaling": {"rope_type": "llama3", "factor": 8}}, "needs low_freq_factor, high_freq_factor"),
    ({"hidden_act": "relu6"}, "hidden_act 'relu6' is not known"),
    ({"model_type": "mixtral"}, "mixture of experts"),
    ({"model_type": "hyperformer"}, "not among the known families"),
    ({"quantization_config": {"quant_method": "gptq"}}, "quantised by gptq"),
    ({"quantization_config": {"quant_method": "awq"}}, "quantised by awq"),
    ({"quantization_config": {"quant_method": "fp8"}}, "quantised by fp8"),
    ({"num_hidden_layers": 0}, "num_hidden_layers must be a whole number of at least 1"),
    ({"hidden_size": "48"}, "hidden_size must be a number"),
    ({"rope_parameters": 7}, "not a well-formed llama config"),
])  # fmt: skip
def test_what_is_not_understood_is_refused_by_name(changes, words, tmp_path):
    write_config(tmp_path, changes)
    with pytest.raises(ModelError, match=words):
        read_config(tmp_path)


@pytest.mark.parametrize(("changes", "head_dim"), [({"head_dim": 16}, 16), ({"head_dim": None}, 10), ({}, 10)])
def test_an_explicit_head_dim_wins_and_null_equals_absent(changes, head_dim, tmp_path):
    write_config(tmp_path, {"hidden_size": 40, "num_attention_heads": 4, "num_key_value_heads": 2} | changes)
    config = read_config(tmp_path)
    assert config.head_dim == head_dim
    assert config.kv_bytes_per_token == 2 * 2 * 4 * 2 * head_dim  # keys and values, two bytes, layers, KV heads


@pytest.mark.parametrize(("changes", "words"), [
    ({"hidden_size": 40, "num_attention_heads": 6}, "hidden_size 40 is not a multiple of num_attention_heads 6"),
    ({"num_attention_heads": 6, "num_key_value_heads": 4}, "num_attention_heads 6 is not a multiple of num_key_value_heads 4"),
    ({"head_dim": 7}, "7 rotated values of each head"),
])  # fmt: skip
def test_impossible_dimensions_are_refused_with_the_numbers(changes, words, tmp_path):
    write_config(tmp_path, changes)
    with pytest.raises(ModelError, match=words):
        read_config(tmp_path)


def test_a_longer_context_than_the_checkpoints_own_is_refused(tmp_path):
    write_config(tmp_path, {})
    assert read_config(tmp_path, 64).max_model_len == 64
    with pytest.raises(ModelError, match=r"model\.max_model_len 129 is more than the checkpoint's max_position_embeddings 128"):
        read_config(tmp_path, 129)


def write_config(folder, changes):
    base = CONFIGS["llama"]().to_dict() | {"rope_parameters": None, "rope_theta": 10000.0, "head_dim": None}
    (folder / "config.json").write_text(json.dumps(base | changes))
