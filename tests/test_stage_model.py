"""Stage model: what model.json says, that it is cheap and that it sees new weights in an old folder."""

import json
import os
import shutil
import subprocess
import sys
import time

import pytest
from checkpoints import write_tiny_llama, write_weights

from pipeline.core.errors import ModelError
from pipeline.core.hashing import sha256_file
from pipeline.core.params import ModelParams, Params
from pipeline.core.paths import Paths
from pipeline.model import digests
from pipeline.stages import model as stage


@pytest.fixture
def folder(tiny_checkpoint, tmp_path):
    return shutil.copytree(tiny_checkpoint, tmp_path / "model")


@pytest.fixture
def paths(tmp_path):
    return Paths(tmp_path / "project")


def run(folder, paths, **model):
    return stage.run(Params(model=ModelParams(source=str(folder), **model)), paths)


def age(folder, seconds=60):
    """As if the files had been written some time ago: digests of fresh files are not remembered."""
    for file in folder.iterdir():
        os.utime(file, (time.time() - seconds,) * 2)


def test_model_json_names_files_stop_ids_and_licence(folder, paths):
    (folder / "README.md").write_text("---\nlanguage: en\nlicense: mit\n---\n# A model\n")
    about = run(folder, paths)
    assert json.loads(paths.model_json.read_text()) == about
    assert (about["family"], about["layers"], about["max_model_len"], about["usable_vocab"]) == ("llama", 2, 512, 320)
    assert about["stop_ids"] == [{"id": 2, "token": "<|im_end|>", "from": "config.json, generation_config.json, tokenizer_config.json"}]
    assert about["licence"] == "mit"
    assert {item["path"]: item["sha256"] for item in about["files"]}["model.safetensors"] == sha256_file(folder / "model.safetensors")
    assert about["parameters"] * 4 == about["weights_bytes"]


def test_the_same_checkpoint_gives_the_same_bytes_wherever_it_lies(folder, paths, tmp_path):
    first = run(folder, paths)
    again = run(shutil.copytree(folder, tmp_path / "elsewhere"), Paths(tmp_path / "other"))
    assert first | {"source": ""} == again | {"source": ""}


def test_new_weights_in_an_old_folder_are_seen(folder, paths):
    age(folder)
    first = run(folder, paths)
    settings = json.loads((folder / "config.json").read_text())
    write_weights(folder, settings, seed=1)
    second = run(folder, paths)
    assert second["weights_digest"] != first["weights_digest"]
    assert second["tokenizer_digest"] == first["tokenizer_digest"]


def test_a_changed_config_is_another_model(folder, paths):
    first = run(folder, paths)
    data = json.loads((folder / "config.json").read_text()) | {"rms_norm_eps": 1e-6}
    (folder / "config.json").write_text(json.dumps(data))
    assert run(folder, paths)["weights_digest"] != first["weights_digest"]


def test_unchanged_files_are_not_hashed_again(folder, paths, monkeypatch):
    age(folder)
    first = run(folder, paths)
    hashed = []
    monkeypatch.setattr(digests, "sha256_file", lambda file: hashed.append(file.name) or sha256_file(file))
    assert run(folder, paths) == first
    assert hashed == []
    age(folder, 30)
    run(folder, paths)
    assert set(hashed) == {item["path"] for item in first["files"]}


def test_a_file_written_this_very_moment_is_not_remembered(folder, paths):
    """It could be written again within the same tick of the clock and look the same."""
    age(folder, -60)  # a clock ahead of ours: never settled, however slow this machine is
    run(folder, paths)
    assert not (paths.work / "file_digests.json").exists()


def test_a_damaged_digest_cache_is_left_aside(folder, paths):
    age(folder)
    first = run(folder, paths)
    (paths.work / "file_digests.json").write_text("[broken")
    assert run(folder, paths) == first


def test_the_stage_loads_no_torch(folder, paths):
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from pipeline.core.params import ModelParams, Params\nfrom pipeline.core.paths import Paths\n"
        "from pipeline.stages import model\n"
        f"model.run(Params(model=ModelParams(source={str(folder)!r})), Paths(Path({str(paths.root)!r})))\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_params_of_the_run_are_told(folder, paths):
    about = run(folder, paths, dtype="bfloat16", quantization="int8", max_model_len=100)
    assert (about["dtype"], about["quantization"], about["max_model_len"]) == ("bfloat16", "int8", 100)
    assert run(folder, paths)["dtype"] == "float32"


def test_a_stop_id_outside_the_vocabulary_is_refused(tmp_path, paths):
    folder = write_tiny_llama(tmp_path / "m", eos_token_id=[2, 4000])
    with pytest.raises(ModelError, match=r"stop ids \[4000\] lie outside the vocabulary of 320"):
        run(folder, paths)


def test_a_cut_weight_file_is_found_without_loading(folder, paths):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(ModelError, match="cut by 8 bytes"):
        run(folder, paths)
    assert not paths.model_json.exists()


def header(folder, text):
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text.encode() + b"\0" * 4)


def put(name, **keys):
    def change(folder):
        (folder / name).write_text(json.dumps(json.loads((folder / name).read_text()) | keys))

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (put("config.json", num_hidden_layers=10**9), r"config\.json: num_hidden_layers 1000000000 is more than any .*Fetch it again"),
        (put("config.json", vocab_size=10**500), r"config\.json: .*llama config"),
        (put("config.json", hidden_size=10**15, head_dim=8), r"config\.json: hidden_size 1000000000000000 is more than any"),
        (put("tokenizer_config.json", chat_template=7), r"tokenizer_config\.json: chat_template must be text, found int; mend it or set"),
        (
            put("tokenizer_config.json", chat_template=[{"template": "x"}]),
            r"tokenizer_config\.json: a list .* name and a template .* or set",
        ),
        (put("tokenizer_config.json", chat_template=[]), r"tokenizer_config\.json: a list of chat templates must give"),
        (
            lambda f: (f / "chat_template.jinja").write_bytes(b"\xff\xfe{"),
            r"chat_template\.jinja: not UTF-8 text \(byte 0\); fetch it again",
        ),
        (lambda f: header(f, "[" * 100_000), r"model\.safetensors: header is damaged .*download it again"),
        (lambda f: header(f, '{"a": {"dtype": "F32", "shape": [1e999], "data_offsets": [0, 4]}}'), r"safetensors: header .*whole numbers"),
        (lambda f: header(f, '{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0.0, 4]}}'), r"safetensors: header .*whole numbers"),
        (lambda f: (f / "config.json").write_text("[" * 100_000), r"config\.json: not JSON .*is the download complete"),
        (lambda f: (f / "tokenizer_config.json").write_text("[" * 100_000), r"tokenizer_config\.json: (damaged|not JSON)"),
    ],
)
def test_absurd_files_are_named_with_a_remedy(folder, paths, change, words):
    change(folder)
    with pytest.raises(ModelError, match=words):
        run(folder, paths)
