"""`pipeline checkpoint`: import, info, quantize as a user types them."""

import pytest
from click.testing import CliRunner

from pipeline.cli.checkpoint import checkpoint
from pipeline.core.errors import UsageError
from pipeline.model.config import read_config
from pipeline.model.footprint import parameter_count, weight_bytes
from pipeline.model.safetensors_file import Shards
from pipeline.model.weights import load_decoder


def call(*arguments):
    result = CliRunner().invoke(checkpoint, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_info_shows_shape_stops_licence_memory_and_digests(tiny_checkpoint):
    shown = call("info", tiny_checkpoint)
    for words in ("family     llama", "4 query heads, 2 KV heads of 8", "2 <|im_end|> (config.json, generation_config.json", "512 tokens",
                  "rotary     default", "not stated", "model.safetensors", "int4       weights"):  # fmt: skip
        assert words in shown


@pytest.mark.parametrize("bits", ["8", "4"])
def test_quantize_writes_a_folder_that_loads_and_says_its_size(bits, tiny_checkpoint, tmp_path):
    out = tmp_path / "small"
    assert "% of" in call("quantize", tiny_checkpoint, out, "--bits", bits)
    assert load_decoder(out).config.stored_bits == int(bits)
    assert f"stored as  int{bits}" in call("info", out)
    with pytest.raises(UsageError, match="is there already"):
        call("quantize", tiny_checkpoint, out, "--bits", bits)


def test_import_copies_a_folder(tiny_checkpoint, tmp_path):
    assert "licence not stated" in call("import", tiny_checkpoint, tmp_path / "copy")
    (tmp_path / "copy/README.md").write_text("---\nlicense: mit\n---\n")
    assert "licence mit" in call("import", tmp_path / "copy", tmp_path / "again")
    (tmp_path / "again/README.md").unlink()
    assert "licence mit" in call("import", tmp_path / "again", tmp_path / "third")
    assert "licence    mit" in call("info", tmp_path / "third")
    assert load_decoder(tmp_path / "copy").config == read_config(tiny_checkpoint)


def test_the_memory_told_beforehand_is_what_the_files_hold(tiny_checkpoint, tmp_path):
    call("quantize", tiny_checkpoint, tmp_path / "small", "--bits", "4")
    config = read_config(tiny_checkpoint)
    with Shards(tiny_checkpoint) as whole, Shards(tmp_path / "small") as small:
        assert weight_bytes(config, "float32") == whole.bytes == parameter_count(config) * 4
        norms = 2 * config.hidden * (2 * config.layers + 1)  # stored in float32 here, told in bfloat16
        assert weight_bytes(config, "int4") == small.bytes - norms
