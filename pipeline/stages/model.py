"""Stage model: which checkpoint answers, proved by the digests of its files. Fast, so that it can run every night."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.core.errors import ModelError
from pipeline.core.manifest import write_json
from pipeline.core.params import Params
from pipeline.core.paths import Paths
from pipeline.model.config import ModelConfig, read_config, read_json
from pipeline.model.digests import describe_checkpoint, weights_digest
from pipeline.model.footprint import parameter_count
from pipeline.model.licence import licence
from pipeline.model.safetensors_file import Shards
from pipeline.model.source import resolve_source
from pipeline.model.vocabulary import read_vocabulary, stop_token_ids, usable_vocab
from pipeline.text.chat_template import ChatTemplate
from pipeline.text.tokenizer import Tokenizer


def run(params: Params, paths: Paths) -> dict[str, Any]:
    """Find the checkpoint (importing it once where it must be), check it without loading it, write models/model.json."""
    folder = resolve_source(params.model.source, paths)
    config = read_config(folder, None if params.model.max_model_len == "auto" else params.model.max_model_len)
    about = {"source": params.model.source, "quantization": params.model.quantization, **describe(folder, config, paths)}
    if params.model.dtype != "auto":
        about["dtype"] = params.model.dtype
    write_json(paths.model_json, about)
    return about


def describe(folder: Path, config: ModelConfig, paths: Paths) -> dict[str, Any]:
    """What model.json says of a checkpoint folder, besides what the params say."""
    vocabulary = read_vocabulary(folder)
    with Shards(folder) as shards:
        entries = [shards.entry(name) for name in shards.where]
    names = {index: token for token, index in (vocabulary or {}).items()}
    stops = [{"id": index, "token": names.get(index), "from": where} for index, where in stop_token_ids(folder, vocabulary)]
    unknown = [item["id"] for item in stops if not 0 <= int(item["id"] or 0) < config.vocab_size]
    if unknown:
        raise ModelError(f"{folder}: stop ids {unknown} lie outside the vocabulary of {config.vocab_size}; do the configs belong together?")
    cache = paths.main_root / ".work/file_digests.json"
    template = ChatTemplate.load(folder)
    return {
        "family": config.family, "files": describe_checkpoint(folder, cache), "weights_digest": weights_digest(folder, cache),
        "tokenizer_digest": Tokenizer.load(folder).digest, "template_digest": template.digest if template else None,
        "stop_ids": stops, "licence": licence(folder), "max_model_len": config.max_model_len,
        "usable_vocab": usable_vocab(folder, vocabulary, config.vocab_size), "parameters": parameter_count(config),
        "weights_bytes": sum(e.bytes for e in entries), "dtype": config.dtype or _dtype(entries[0].dtype), "layers": config.layers,
        "heads": config.heads, "kv_heads": config.kv_heads, "head_dim": config.head_dim, "hidden": config.hidden,
        "rotary": sorted({rotary.kind for rotary in config.rotaries}), "imported_from": _record(folder),
    }  # fmt: skip


def _dtype(stored: str) -> str:
    return {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}.get(stored, stored)


def _record(folder: Path) -> dict[str, Any] | None:
    """What the importer wrote down: where the files came from, and their digests."""
    return read_json(folder / "import.json") if (folder / "import.json").is_file() else None
