"""A merged adapter is its base plus scale * B A, and what is more than plain LoRA is refused by name."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from pipeline.core.errors import ModelError
from pipeline.core.paths import Paths
from pipeline.model.config import read_config
from pipeline.model.source import import_source
from pipeline.model.weights import load_decoder

TARGETS = {"model.layers.0.self_attn.q_proj": (32, 32), "model.layers.1.mlp.down_proj": (32, 64)}


def write_adapter(folder, rank=4, alpha=8, **config):
    folder.mkdir()
    torch.manual_seed(0)
    tensors = {}
    for name, (rows, columns) in TARGETS.items():
        tensors[f"base_model.model.{name}.lora_A.weight"] = torch.randn(rank, columns)
        tensors[f"base_model.model.{name}.lora_B.weight"] = torch.randn(rows, rank)
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "bias": "none"} | config))
    return folder


@pytest.mark.parametrize(("changes", "scale"), [({}, 2.0), ({"use_rslora": True}, 4.0)])
def test_a_merged_matrix_is_the_base_plus_the_scaled_product(changes, scale, tiny_checkpoint, tmp_path):
    adapter = write_adapter(tmp_path / "adapter", **changes)
    record = import_source(str(tiny_checkpoint), tmp_path / "out", Paths(tmp_path), adapter=adapter)
    assert (record["scale"], record["rank"], record["adapter"]) == (scale, 4, "adapter")
    base, merged, parts = (load_file(file) for file in (
        tiny_checkpoint / "model.safetensors", tmp_path / "out/model.safetensors", adapter / "adapter_model.safetensors"))  # fmt: skip
    for name, weight in base.items():
        stem = f"base_model.model.{name.removesuffix('.weight')}"
        if f"{stem}.lora_A.weight" in parts:
            weight = weight + scale * (parts[f"{stem}.lora_B.weight"] @ parts[f"{stem}.lora_A.weight"])
        torch.testing.assert_close(merged[name], weight)
    assert sum(not torch.equal(merged[name], base[name]) for name in base) == len(TARGETS)
    load_decoder(tmp_path / "out")


@pytest.mark.parametrize(("changes", "words"), [
    ({"use_dora": True}, "use_dora is set"),
    ({"modules_to_save": ["lm_head"]}, "modules_to_save is set"),
    ({"bias": "all"}, "bias 'all' is not supported"),
    ({"peft_type": "IA3"}, "peft_type 'IA3' is not read"),
    ({"r": None}, "needs r and lora_alpha"),
])  # fmt: skip
def test_what_is_more_than_plain_lora_is_refused(changes, words, tiny_checkpoint, tmp_path):
    adapter = write_adapter(tmp_path / "adapter", **changes)
    with pytest.raises(ModelError, match=words):
        import_source(str(tiny_checkpoint), tmp_path / "out", Paths(tmp_path), adapter=adapter)
    assert not (tmp_path / "out").exists()


def test_an_adapter_of_another_base_is_refused(tiny_checkpoint, tmp_path, monkeypatch):
    monkeypatch.setitem(TARGETS, "model.layers.7.mlp.up_proj", (64, 32))
    adapter = write_adapter(tmp_path / "a")
    with pytest.raises(ModelError, match=r"layers\.7\.mlp\.up_proj\.weight has A and B, and is not in the base"):
        import_source(str(tiny_checkpoint), tmp_path / "out", Paths(tmp_path), adapter=adapter)
    monkeypatch.delitem(TARGETS, "model.layers.7.mlp.up_proj")
    monkeypatch.setitem(TARGETS, "model.layers.0.self_attn.k_proj", (32, 32))
    adapter = write_adapter(tmp_path / "b")
    with pytest.raises(ModelError, match=r"k_proj\.weight is \[16, 32\] in the base"):
        import_source(str(tiny_checkpoint), tmp_path / "out", Paths(tmp_path), adapter=adapter)


def test_an_adapter_alone_is_no_model(tmp_path):
    with pytest.raises(ModelError, match="a LoRA adapter without its base"):
        read_config(write_adapter(tmp_path / "adapter"))
