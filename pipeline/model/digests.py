"""sha256 of checkpoint files, remembered by size, modification time and inode; and the digests that join an answer's key.

A remembered digest is used only when the file was not touched for two seconds before it was hashed: a file written again within
one tick of the clock would look the same.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from pipeline.core.hashing import sha256_file, sha256_json
from pipeline.core.manifest import read_json_or_empty, write_json
from pipeline.model.safetensors_file import weight_files

SETTLED_S = 2.0
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja", "chat_template.json")
CONFIG_FILES = ("config.json", "generation_config.json")


def checkpoint_files(folder: Path) -> list[Path]:
    """The files of a checkpoint that can change an answer, in name order: configs, tokenizer, template, weights."""
    named = [folder / name for name in (*CONFIG_FILES, *TOKENIZER_FILES, "model.safetensors.index.json")]
    return sorted([file for file in named if file.is_file()] + weight_files(folder))


def describe_checkpoint(folder: Path, cache: Path | None = None) -> list[dict[str, Any]]:
    """{path, bytes, sha256} of every checkpoint file; paths are names in the folder."""
    return [
        {"path": file.relative_to(folder).as_posix(), "bytes": file.stat().st_size, "sha256": cached_sha256(file, cache)}
        for file in checkpoint_files(folder)
    ]


def weights_digest(folder: Path, cache: Path | None = None) -> str:
    """sha256 over the names and contents of config.json and the weight files: what, besides prompts and params, makes an answer."""
    files = [folder / "config.json", *weight_files(folder)]
    return sha256_json({file.name: cached_sha256(file, cache) for file in files})


def cached_sha256(file: Path, cache: Path | None) -> str:
    """sha256 of a file, from the cache file where it knows these very bytes."""
    if cache is None:
        return sha256_file(file)
    key, mark = str(file.absolute()), _mark(file)
    known = read_json_or_empty(cache).get(key, {})
    if known.get("mark") == mark:
        return str(known["sha256"])
    settled = time.time() - file.stat().st_mtime > SETTLED_S
    digest = sha256_file(file)
    if settled and _mark(file) == mark:
        write_json(cache, read_json_or_empty(cache) | {key: {"mark": mark, "sha256": digest}})
    return digest


def _mark(file: Path) -> list[int]:
    stat = os.stat(file)
    return [stat.st_size, stat.st_mtime_ns, stat.st_ino]
