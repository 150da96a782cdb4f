"""Loading: every parameter filled from the files or a named error; what was broken is named with its likely cause."""

import json
import shutil

import pytest
import torch
from checkpoints import write_tiny_llama
from safetensors.torch import load_file, save_file

from pipeline.core.errors import MissingInput, ModelError
from pipeline.core.params import ModelParams
from pipeline.model.layout import pieces
from pipeline.model.safetensors_file import INDEX, SINGLE
from pipeline.model.smoke import smoke_run
from pipeline.model.vocabulary import stop_token_ids
from pipeline.model.weights import load_decoder


@pytest.fixture
def folder(tiny_checkpoint, tmp_path):
    """A copy of the tiny checkpoint that a test may break."""
    return shutil.copytree(tiny_checkpoint, tmp_path / "model")


@pytest.fixture
def sharded(folder):
    """The same weights over three shards with an index."""
    tensors = load_file(folder / SINGLE)
    names = sorted(tensors)
    files = {f"model-{index + 1:05d}-of-00003.safetensors": names[index::3] for index in range(3)}
    for file, held in files.items():
        save_file({name: tensors[name] for name in held}, folder / file)
    (folder / SINGLE).unlink()
    write_index(folder, {name: file for file, held in files.items() for name in held})
    return folder


def write_index(folder, weight_map):
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def edit(folder, name, **changes):
    file = folder / name
    data = json.loads(file.read_text()) | changes
    file.write_text(json.dumps(data))


def resave(folder, change):
    tensors = load_file(folder / SINGLE)
    change(tensors)
    save_file(tensors, folder / SINGLE)


def test_loaded_parameters_are_the_files_tensors_bit_for_bit(folder):
    decoder = load_decoder(folder)
    tensors = load_file(folder / SINGLE)
    for piece in pieces(decoder.config):
        rows = decoder.get_parameter(piece.target)[piece.start : piece.start + piece.shape[0]]
        assert torch.equal(rows, tensors[piece.source])
    assert not any(parameter.is_meta for parameter in decoder.parameters())


def test_shards_give_the_same_model_as_one_file(tiny_checkpoint, sharded):
    one, three = load_decoder(tiny_checkpoint), load_decoder(sharded)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), three.parameters(), strict=True))


def test_dtype_follows_the_checkpoint_unless_the_params_say_otherwise(folder):
    resave(folder, lambda tensors: tensors.update({name: tensor.bfloat16() for name, tensor in tensors.items() if tensor.ndim > 1}))
    assert load_decoder(folder).dtype == torch.bfloat16  # the matrices', though the norms are stored wider
    assert load_decoder(folder, ModelParams(dtype="float32")).dtype == torch.float32


def test_a_missing_shard_is_named(sharded):
    (sharded / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(ModelError, match=r"names model-00002-of-00003\.safetensors, not there \(1 of 3 shards\); a partial download"):
        load_decoder(sharded)


def test_a_stale_index_is_refused(sharded):
    weight_map = json.loads((sharded / INDEX).read_text())["weight_map"]
    weight_map["model.layers.9.mlp.up_proj.weight"] = weight_map["model.norm.weight"]
    write_index(sharded, weight_map)
    with pytest.raises(ModelError, match="index and shards are of different versions"):
        load_decoder(sharded)


def test_a_stray_file_with_the_same_tensors_is_refused_and_other_files_are_left_alone(sharded):
    save_file({"layers.0.attention.wq.weight": torch.zeros(2)}, sharded / "consolidated.safetensors")
    load_decoder(sharded)
    save_file({"model.norm.weight": torch.zeros(32)}, sharded / "extra.safetensors")
    with pytest.raises(ModelError, match=r"extra\.safetensors: not named by the index, but holds the same tensors"):
        load_decoder(sharded)


def test_a_shard_cut_by_100_bytes_is_named_with_both_sizes(sharded):
    file = sharded / "model-00003-of-00003.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ModelError, match=r"model-00003-of-00003\.safetensors: cut by 100 bytes"):
        load_decoder(sharded)


@pytest.mark.parametrize(("content", "words"), [
    (b"version https://git-lfs.example/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 269060552\n", "Git LFS pointer"),
    ((2**60).to_bytes(8, "little") + b"{}" * 40, "claims a header of 1152921504606846976 bytes"),
    (b"", "0 bytes are no safetensors file"),
    ((20).to_bytes(8, "little") + b"{this is not JSON...}", "header is damaged"),
    ((60).to_bytes(8, "little") + b'{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,16]}}     ' + bytes(16), "F32 does not fill"),
    ((60).to_bytes(8, "little") + b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}     ' + bytes(12), "the header is damaged"),
])  # fmt: skip
def test_a_file_that_is_no_safetensors_is_named_before_anything_is_allocated(content, words, folder):
    (folder / SINGLE).write_bytes(content)
    with pytest.raises(ModelError, match=words):
        load_decoder(folder)


@pytest.mark.parametrize(("change", "words"), [
    (lambda t: t.pop("model.layers.1.mlp.down_proj.weight"), r"1 tensors are missing, the first is model\.layers\.1\.mlp"),
    (lambda t: t.pop("lm_head.weight"), r"the head lm_head\.weight is missing"),
    (lambda t: t.update({"model.layers.2.mlp.up_proj.weight": torch.zeros(64, 32)}), "1 tensors have no place"),
    (lambda t: t.update({"model.norm.weight": torch.ones(31)}), r"model\.safetensors: .*norm\.weight has shape \[31\], .* for \[32\]"),
    (lambda t: t.update({"model.norm.weight": torch.ones(32, dtype=torch.int8)}), "is stored as I8"),
])  # fmt: skip
def test_tensors_and_config_must_agree(change, words, folder):
    resave(folder, change)
    with pytest.raises(ModelError, match=words):
        load_decoder(folder)


def test_old_rotary_tables_in_the_files_are_left_aside(folder):
    resave(folder, lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}))
    load_decoder(folder)


def test_a_repeated_tied_head_must_be_the_embedding(tmp_path):
    folder = write_tiny_llama(tmp_path / "tied", tie_word_embeddings=True)
    decoder = load_decoder(folder)
    assert decoder.head.weight is decoder.embedding.weight
    resave(folder, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}))
    load_decoder(folder)
    resave(folder, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"] + 1}))
    with pytest.raises(ModelError, match=r"ties the head to the embedding, but lm_head\.weight is different"):
        load_decoder(folder)


def test_weights_only_as_pickle_are_never_read(folder):
    (folder / SINGLE).rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"weights only as pytorch_model\.bin; pickle can run code and is never read"):
        load_decoder(folder)


def test_a_folder_without_weights_or_config_is_named(folder, tmp_path):
    (folder / SINGLE).unlink()
    with pytest.raises(ModelError, match="no weights"):
        load_decoder(folder)
    (folder / "config.json").unlink()
    with pytest.raises(MissingInput, match=r"no config\.json in it"):
        load_decoder(folder)
    with pytest.raises(MissingInput, match="no such folder"):
        load_decoder(tmp_path / "nothing")


def test_several_files_without_an_index_are_refused(sharded):
    (sharded / INDEX).unlink()
    with pytest.raises(ModelError, match=r"3 \.safetensors files without model\.safetensors\.index\.json"):
        load_decoder(sharded)


# token ids beyond the embedding


def test_a_tokenizer_larger_than_the_embedding_is_refused_with_both_numbers(folder):
    data = json.loads((folder / "tokenizer.json").read_text())
    last = dict(data["added_tokens"][-1], id=320, content="<new>")
    data["added_tokens"].append(last)
    (folder / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(ModelError, match="the tokenizer has ids up to 320, the embedding has 320 rows"):
        load_decoder(folder)


def test_padded_rows_of_the_vocabulary_are_known_as_unusable(tmp_path):
    folder = write_tiny_llama(tmp_path / "padded", vocab_size=352)
    decoder = load_decoder(folder)
    assert (decoder.usable_vocab, decoder.config.vocab_size) == (320, 352)
    with torch.no_grad():
        decoder.head.weight[340:] = decoder.head.weight[:320].abs().max() * 100 * torch.sign(torch.randn(12, 32))
    assert max(smoke_run(decoder)) < 320


def test_a_checkpoint_without_tokenizer_uses_all_rows(folder):
    (folder / "tokenizer.json").unlink()
    assert load_decoder(folder).usable_vocab == 320


# what is not finite


def test_a_nan_weight_is_named_with_its_layer(folder):
    def poison(tensors):
        tensors["model.layers.1.self_attn.k_proj.weight"][3, 5] = float("nan")

    resave(folder, poison)
    with pytest.raises(ModelError, match=r"model: layer 1: attention\.qkv\.weight has 1 values that are not finite in float32; .*fetch it"):
        load_decoder(folder)


def test_half_precision_that_overflows_is_named_with_layer_and_dtype(folder):
    def widen(tensors):
        tensors["model.layers.1.mlp.down_proj.weight"] *= 30_000
        tensors["model.layers.1.mlp.up_proj.weight"] *= 100

    resave(folder, widen)
    load_decoder(folder, ModelParams(dtype="bfloat16"))
    with pytest.raises(ModelError, match=r"layer 1: .*not finite in float16.*set model\.dtype to bfloat16 or float32"):
        load_decoder(folder, ModelParams(dtype="float16"))


def test_a_cuda_device_that_is_not_there_is_refused(folder, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ModelError, match=r"model\.device is cuda, but torch finds no CUDA device"):
        load_decoder(folder, ModelParams(device="cuda"))


# stop ids


def test_stop_ids_are_the_union_of_all_files_each_with_its_source(folder):
    edit(folder, "generation_config.json", eos_token_id=[2, 1])
    edit(folder, "tokenizer_config.json", eos_token={"content": "<|endoftext|>"})
    assert stop_token_ids(folder) == [
        (0, "tokenizer_config.json"),
        (1, "generation_config.json"),
        (2, "config.json, generation_config.json"),
    ]
    edit(folder, "config.json", eos_token_id="2")
    with pytest.raises(ModelError, match="eos_token_id must be a token id or a list of them"):
        stop_token_ids(folder)
