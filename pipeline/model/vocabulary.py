"""Token strings and ids as tokenizer.json lists them, and the ids that end an answer. No torch, no tokenizing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pipeline.core.errors import ModelError
from pipeline.model.config import id_list, read_json


def read_vocabulary(folder: Path) -> dict[str, int] | None:
    """token: id, added tokens included; None where the folder has no tokenizer.json. Raises ModelError on a damaged one."""
    file = folder / "tokenizer.json"
    if not file.is_file():
        return None
    try:
        data: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        vocab = data["model"]["vocab"]
        ids = dict(vocab) if isinstance(vocab, dict) else {piece: index for index, (piece, _) in enumerate(vocab)}
        return ids | {token["content"]: int(token["id"]) for token in data.get("added_tokens") or []}
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{file}: not a readable tokenizer.json ({type(error).__name__}: {error}); is the download complete?") from None


def usable_vocab(folder: Path, vocabulary: dict[str, int] | None, rows: int) -> int:
    """Token ids the tokenizer has; rows of the head at or above are padding and are never sampled.

    Raises ModelError when the tokenizer has ids that the embedding of `rows` rows has no row for.
    """
    size = rows if vocabulary is None else max(vocabulary.values(), default=-1) + 1
    if size > rows:
        raise ModelError(f"{folder}: the tokenizer has ids up to {size - 1}, the embedding has {rows} rows; tokenizer and weights do "
                         "not belong together, or the embedding was not resized when tokens were added")  # fmt: skip
    return size


def stop_token_ids(folder: Path, vocabulary: dict[str, int] | None = None) -> list[tuple[int, str]]:
    """(id, files that name it) for every id that ends an answer: the union of config, generation config and tokenizer, by id."""
    vocabulary = read_vocabulary(folder) if vocabulary is None else vocabulary
    found: dict[int, list[str]] = {}
    for name in ("config.json", "generation_config.json"):
        if (folder / name).is_file():
            for index in id_list(read_json(folder / name).get("eos_token_id")):
                found.setdefault(index, []).append(name)
    if (folder / "tokenizer_config.json").is_file() and vocabulary:
        token = read_json(folder / "tokenizer_config.json").get("eos_token")
        token = token.get("content") if isinstance(token, dict) else token
        if token in vocabulary:
            found.setdefault(vocabulary[token], []).append("tokenizer_config.json")
    return [(index, ", ".join(names)) for index, names in sorted(found.items())]
