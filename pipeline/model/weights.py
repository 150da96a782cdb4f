"""A checkpoint folder to a decoder that is ready: every parameter filled from the files, or a named error; never a random weight.

The decoder is built without memory (torch's meta device) and filled layer by layer. Tensors of the wanted type are read from
the file straight into their place, so that loading needs the weights' own memory and one tensor more.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import torch
from torch import Tensor, nn

from pipeline.core.errors import ModelError
from pipeline.core.params import ModelParams
from pipeline.core.progress import Progress
from pipeline.model.config import ModelConfig, read_config
from pipeline.model.decoder import Decoder
from pipeline.model.device import TORCH_DTYPES, byte_view, pick_device
from pipeline.model.layout import IGNORED_ENDINGS, Piece, pieces
from pipeline.model.safetensors_file import Shards
from pipeline.model.smoke import smoke_run
from pipeline.model.vocabulary import read_vocabulary, usable_vocab


def load_decoder(folder: Path, params: ModelParams | None = None, status: Path | None = None) -> Decoder:
    """Load, check and try out a checkpoint. status: file for `pipeline status`.

    Raises MissingInput or ModelError naming file, tensor and way out.
    """
    params = params or ModelParams()
    config = read_config(folder, None if params.max_model_len == "auto" else params.max_model_len)
    with Shards(folder) as shards:
        plan = checked_plan(config, shards)
        dtype = stored_dtype(shards, plan) if params.dtype == "auto" else TORCH_DTYPES[params.dtype]
        decoder = empty_decoder(config, usable_vocab(folder, read_vocabulary(folder), config.vocab_size))
        with Progress("load", total=shards.bytes >> 20, unit="MiB", status=status) as progress:
            fill(decoder, plan, shards, pick_device(params.device), dtype, progress)
    smoke_run(decoder)
    return decoder


def empty_decoder(config: ModelConfig, vocab: int | None = None) -> Decoder:
    """A decoder whose parameters have shapes but no memory."""
    with torch.device("meta"):
        return Decoder(config, vocab).eval()


def checked_plan(config: ModelConfig, shards: Shards) -> list[Piece]:
    """The pieces of the checkpoint, after names, shapes and types of the files were accounted for."""
    plan = list(pieces(config))
    wanted = {piece.source: piece for piece in plan}
    have = {name for name in shards.where if not name.endswith(IGNORED_ENDINGS)}
    missing, extra = [name for name in wanted if name not in have], sorted(have - set(wanted))
    if missing == ["lm_head.weight"]:
        raise ModelError(f"{shards.folder}: the head lm_head.weight is missing, and config.json does not tie it to the embedding; "
                         "fetch the missing shard, or set tie_word_embeddings to true if the model is tied")  # fmt: skip
    if missing:
        raise ModelError(f"{shards.folder}: {len(missing)} tensors are missing, the first is {missing[0]}"
                         f"{_hint(extra)}; is the download complete, and does config.json belong to it?")  # fmt: skip
    if config.tied and extra == ["lm_head.weight"]:
        _check_tied(shards)
        extra = []
    if extra:
        raise ModelError(f"{shards.folder}: {len(extra)} tensors have no place in a {config.family} of this config.json, the first is "
                         f"{extra[0]}; do the files belong together?")  # fmt: skip
    for piece in plan:
        entry = shards.entry(piece.source)
        if entry.shape != piece.shape:
            raise ModelError(f"{shards.folder}: {piece.source} has shape {list(entry.shape)}, config.json asks for {list(piece.shape)}")
        if entry.dtype not in ("F64", "F32", "BF16", "F16"):
            raise ModelError(f"{shards.folder}: {piece.source} is stored as {entry.dtype}; only floating-point weights are read "
                             "(FP8 and packed formats are not supported)")  # fmt: skip
    return plan


def _hint(extra: list[str]) -> str:
    return f" (found instead: {extra[0]})" if extra else ""


def _check_tied(shards: Shards) -> None:
    """Files may repeat a tied head; it must then be the embedding, bit for bit."""
    tensors = [read_tensor(shards, name) for name in ("lm_head.weight", "model.embed_tokens.weight")]
    if not torch.equal(*tensors):
        raise ModelError(f"{shards.folder}: config.json ties the head to the embedding, but lm_head.weight is different from it; "
                         "set tie_word_embeddings to false if the head is meant")  # fmt: skip


def read_tensor(shards: Shards, name: str) -> Tensor:
    """One tensor as stored."""
    entry = shards.entry(name)
    tensor = torch.empty(entry.shape, dtype=TORCH_DTYPES[entry.dtype])
    shards.read_into(name, byte_view(tensor))
    return tensor


def stored_dtype(shards: Shards, plan: list[Piece]) -> torch.dtype:
    """The type that holds most of the bytes: norms may be wider than matrices."""
    counts: Counter[str] = Counter()
    for piece in plan:
        counts[shards.entry(piece.source).dtype] += shards.entry(piece.source).bytes
    return TORCH_DTYPES[counts.most_common(1)[0][0]]


def fill(decoder: Decoder, plan: list[Piece], shards: Shards, device: torch.device, dtype: torch.dtype, progress: Progress) -> None:
    """Give every parameter memory on `device` and its values, one parameter after the other."""
    by_target: dict[str, list[Piece]] = defaultdict(list)
    for piece in plan:
        by_target[piece.target].append(piece)
    read = 0
    for target, parts in by_target.items():
        module, name = decoder.get_submodule(target.rpartition(".")[0]), target.rpartition(".")[2]
        values = torch.empty(getattr(module, name).shape, dtype=dtype)
        for piece in parts:
            _read_rows(values[piece.start : piece.start + piece.shape[0]], piece, shards)
            read += shards.entry(piece.source).bytes
        setattr(module, name, nn.Parameter(values.to(device), requires_grad=False))
        progress.update((read >> 20) - progress.done)
    if decoder.config.tied:
        decoder.head.weight = decoder.embedding.weight
    decoder.rotaries.to(device)
    unfilled = [name for name, parameter in decoder.named_parameters() if parameter.is_meta]
    assert not unfilled, f"parameters without values: {unfilled[:3]}"


def _read_rows(rows: Tensor, piece: Piece, shards: Shards) -> None:
    """Straight into place where the stored type is the wanted one, else over one tensor's copy."""
    if TORCH_DTYPES[shards.entry(piece.source).dtype] == rows.dtype:
        shards.read_into(piece.source, byte_view(rows))
    else:
        rows.copy_(read_tensor(shards, piece.source))
