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
from pipeline.model.config import read_config, read_json
from pipeline.model.device import TORCH_DTYPES
from pipeline.model.gguf_tokenizer import adds_bos, build_tokenizer
from pipeline.model.gguf_weights import GgufFile
from pipeline.model.layout import Piece
from pipeline.model.licence import licence
from pipeline.model.safetensors_file import INDEX, SINGLE, Shards
from pipeline.model.stored_form import GROUP, bits_of, stored_form
from pipeline.model.weights import checked_plan, read_rows, read_tensor, round_into, stored_dtype

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
        cast = ((name, tensor.to(TORCH_DTYPES[dtype])) for name, tensor in source.tensors())
        write_weights(_counted(cast, progress), out)
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


def write_weights(tensors: Iterable[tuple[str, Tensor]], out: Path) -> None:
    """Write tensors in shards of at most 2 GiB (one file where they fit); only one shard is in memory."""
    shard: dict[str, Tensor] = {}
    files: list[list[str]] = []
    total = held = 0

    def flush() -> None:
        file = out / f"shard-{len(files):05d}.safetensors"
        save_file(shard, file, metadata={"format": "pt"})
        file.chmod((out / "config.json").stat().st_mode)  # safetensors makes it readable for its owner alone
        files.append(list(shard))
        shard.clear()

    for name, tensor in tensors:
        if shard and held + tensor.nbytes > SHARD_BYTES:
            flush()
            held = 0
        shard[name] = tensor.contiguous()
        held += tensor.nbytes
        total += tensor.nbytes
    flush()
    _name_shards(files, total, out)


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


def copy_folder(source: Path, out: Path, weights: bool = True) -> dict[str, Any]:
    """Copy what a checkpoint needs from a Hugging Face folder; never pickles or code. Returns its licence for the record."""
    out.mkdir(parents=True, exist_ok=True)
    for pattern in COPIED:
        for file in sorted(source.glob(pattern)):
            if file.is_file() and (weights or not file.name.endswith((".safetensors", INDEX))):
                shutil.copyfile(file, out / file.name)
    stated = licence(source)
    return {"license": stated} if stated else {}


def quantize_folder(source: Path, out: Path, bits: int) -> dict[str, Any]:
    """A checkpoint whose matrices are rounded to `bits`, embedding and head to 8; norms and biases stay as they are stored."""
    config = read_config(source)
    if config.stored_bits:
        raise ModelError(f"{source}: the weights are int{config.stored_bits} already; quantise the float checkpoint")
    raw = read_json(source / "config.json") | {"quantization_config": {"quant_method": "pipeline", "bits": bits, "group": GROUP}}
    copied = copy_folder(source, out, weights=False)
    with Shards(source) as shards, Progress("quantize", total=shards.bytes >> 20, unit="MiB") as progress:
        plan = checked_plan(config, shards)
        raw.setdefault("torch_dtype", str(stored_dtype(shards, plan)).removeprefix("torch."))
        write_json(out / "config.json", raw)
        write_weights(_quantized(plan, shards, bits, progress), out)
    return {"quantized_from": source.name, "bits": bits, **copied}


def _quantized(plan: list[Piece], shards: Shards, bits: int, progress: Progress) -> Iterator[tuple[str, Tensor]]:
    read = 0
    for piece in plan:
        if len(piece.shape) == 1:
            yield piece.source, read_tensor(shards, piece.source)
        else:
            kept = bits_of(piece.target, bits)
            form = stored_form(piece.shape[0], piece.shape[1], kept)
            parts = {suffix: torch.empty(shape, dtype=TORCH_DTYPES[kind]) for suffix, (shape, kind) in form.items()}
            round_into(parts, read_rows(shards, piece.source), kept)
            yield from ((piece.source + suffix, part) for suffix, part in parts.items())
        read += shards.entry(piece.source).bytes
        progress.update((read >> 20) - progress.done)
