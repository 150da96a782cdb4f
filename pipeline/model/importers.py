"""Other people's files to a Hugging Face folder: GGUF is converted, a folder is copied. Writes into a folder it is given.

The folder is complete only when `import.json` lies in it; model/source.py puts it in place by rename.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from pipeline.core.errors import ModelError
from pipeline.core.hashing import sha256_file
from pipeline.core.manifest import write_json
from pipeline.core.progress import Progress
from pipeline.model.device import TORCH_DTYPES
from pipeline.model.gguf_tokenizer import adds_bos, build_tokenizer
from pipeline.model.gguf_weights import GgufFile
from pipeline.model.safetensors_file import INDEX, SINGLE

SHARD_BYTES = 2 * 1024**3
COPIED = ("*.json", "*.safetensors", "*.jinja", "*.model", "LICENSE*", "*.txt", "README.md")


def import_gguf(file: Path, out: Path, dtype: str = "bfloat16", status: Path | None = None) -> dict[str, Any]:
    """Convert one GGUF file into `out`; weights are stored as `dtype`. Returns what import.json says."""
    source = GgufFile(file)
    config = source.config() | {"torch_dtype": dtype}
    out.mkdir(parents=True, exist_ok=True)
    write_tokenizer(source, out, config)
    write_json(out / "config.json", config)
    write_json(out / "generation_config.json", _generation_config(source))
    sizes = source.sizes()
    with Progress("import", total=sum(sizes.values()) // 1_000_000, unit="million weights", status=status) as progress:
        write_weights(_counted(source.tensors(), progress), sizes, out, TORCH_DTYPES[dtype])
    return {
        "architecture": source.name, "dtype": dtype, "gguf_sha256": sha256_file(file), "gguf_bytes": file.stat().st_size,
        "name": source.get("general.name"), "license": source.get("general.license"),
        "tensor_types": source.tensor_types(),
    }  # fmt: skip


def _counted(tensors: Iterable[tuple[str, Tensor]], progress: Progress) -> Iterator[tuple[str, Tensor]]:
    done = 0
    for name, tensor in tensors:
        yield name, tensor
        done += tensor.numel()
        progress.update(done // 1_000_000 - progress.done)


def write_weights(tensors: Iterable[tuple[str, Tensor]], sizes: dict[str, int], out: Path, dtype: torch.dtype) -> None:
    """Cast and write tensors in shards of at most 2 GiB (one file where they fit); only one shard is in memory."""
    limit = SHARD_BYTES // dtype.itemsize
    shard: dict[str, Tensor] = {}
    files: list[list[str]] = []

    def flush() -> None:
        file = out / f"shard-{len(files):05d}.safetensors"
        save_file(shard, file, metadata={"format": "pt"})
        file.chmod((out / "config.json").stat().st_mode)  # safetensors makes it readable for its owner alone
        files.append(list(shard))
        shard.clear()

    for name, tensor in tensors:
        if shard and sum(sizes[held] for held in shard) + sizes[name] > limit:
            flush()
        shard[name] = tensor.to(dtype).contiguous()
    flush()
    _name_shards(files, sum(sizes.values()) * dtype.itemsize, out)


def _name_shards(files: list[list[str]], total_bytes: int, out: Path) -> None:
    """Final names, which hold the number of shards, and the index."""
    if len(files) == 1:
        (out / "shard-00000.safetensors").rename(out / SINGLE)
        return
    weight_map: dict[str, str] = {}
    for index, names in enumerate(files):
        final = f"model-{index + 1:05d}-of-{len(files):05d}.safetensors"
        (out / f"shard-{index:05d}.safetensors").rename(out / final)
        weight_map |= dict.fromkeys(names, final)
    write_json(out / INDEX, {"metadata": {"total_size": total_bytes}, "weight_map": weight_map})


def write_tokenizer(source: GgufFile, out: Path, config: dict[str, Any]) -> None:
    """tokenizer.json and tokenizer_config.json with the chat template."""
    tokens = source.get("tokenizer.ggml.tokens") or []
    if len(tokens) > config["vocab_size"]:
        raise ModelError(f"{source.file}: {len(tokens)} tokens, but the embedding has {config['vocab_size']} rows")
    try:
        build_tokenizer(source.get).save(str(out / "tokenizer.json"))
    except ModelError as error:
        raise ModelError(f"{source.file}: {error}") from None
    names = {"bos_token": "bos_token_id", "eos_token": "eos_token_id", "unk_token": "unknown_token_id", "pad_token": "padding_token_id"}
    ids = {name: source.get(f"tokenizer.ggml.{key}") for name, key in names.items()}
    data: dict[str, Any] = {name: tokens[index] for name, index in ids.items() if index is not None and index < len(tokens)}
    template = source.get("tokenizer.chat_template")
    data |= {"chat_template": template} if template else {}
    data |= {
        "add_bos_token": adds_bos(source.get), "clean_up_tokenization_spaces": False,
        "model_max_length": config["max_position_embeddings"], "tokenizer_class": "PreTrainedTokenizerFast",
    }  # fmt: skip
    write_json(out / "tokenizer_config.json", data)


def _generation_config(source: GgufFile) -> dict[str, Any]:
    """Every id that ends an answer: end of sequence and, where the file names one, end of turn."""
    ends = [source.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot")]
    ids = list(dict.fromkeys(index for index in ends if index is not None))
    data = {"bos_token_id": source.get("tokenizer.ggml.bos_token_id"), "eos_token_id": ids[0] if len(ids) == 1 else ids,
            "pad_token_id": source.get("tokenizer.ggml.padding_token_id")}  # fmt: skip
    return {key: value for key, value in data.items() if value not in (None, [])}


def copy_folder(source: Path, out: Path) -> dict[str, Any]:
    """Copy what a checkpoint needs from a Hugging Face folder; never pickles or code."""
    out.mkdir(parents=True, exist_ok=True)
    for pattern in COPIED:
        for file in sorted(source.glob(pattern)):
            if file.is_file():
                shutil.copyfile(file, out / file.name)
    return {}
