"""A checkpoint folder to a decoder that is ready: every parameter filled from the files, or a named error; never a random weight.

The decoder is built without memory (torch's meta device) and filled layer by layer. Tensors of the wanted type are read from
the file straight into their place, others some rows at a time, so that loading needs little more than the weights' own memory.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
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
from pipeline.model.quantize import QuantizedEmbedding, QuantizedLinear, quantize
from pipeline.model.safetensors_file import Shards
from pipeline.model.smoke import smoke_run
from pipeline.model.stored_form import BITS, bits_of, stored_form
from pipeline.model.vocabulary import read_vocabulary, usable_vocab

FLOATS = ("F64", "F32", "BF16", "F16")
BLOCK_BYTES = 1 << 20  # of a tensor that is converted while it is read


def load_decoder(folder: Path, params: ModelParams | None = None, status: Path | None = None) -> Decoder:
    """Load, check and try out a checkpoint. status: file for `pipeline status`.

    Raises MissingInput or ModelError naming file, tensor and way out.
    """
    params = params or ModelParams()
    config = read_config(folder, None if params.max_model_len == "auto" else params.max_model_len)
    bits = BITS[params.quantization]
    if config.stored_bits and bits and bits != config.stored_bits:
        raise ModelError(f"{folder}: the weights are int{config.stored_bits} already; set model.quantization to none, or quantise the "
                         "float checkpoint")  # fmt: skip
    with Shards(folder) as shards:
        plan = checked_plan(config, shards)
        dtype = stored_dtype(shards, plan) if params.dtype == "auto" else TORCH_DTYPES[params.dtype]
        decoder = empty_decoder(config, usable_vocab(folder, read_vocabulary(folder), config.vocab_size))
        with Progress("load", total=shards.bytes >> 20, unit="MiB", status=status) as progress:
            Filler(decoder, shards, pick_device(params.device), dtype, bits or config.stored_bits).fill(plan, progress)
    try:
        smoke_run(decoder)
    except ModelError as error:
        raise ModelError(f"{folder}: {error}") from None
    return decoder


def empty_decoder(config: ModelConfig, vocab: int | None = None) -> Decoder:
    """A decoder whose parameters have shapes but no memory."""
    with torch.device("meta"):
        return Decoder(config, vocab).eval()


def checked_plan(config: ModelConfig, shards: Shards) -> list[Piece]:
    """The pieces of the checkpoint, after names, shapes and types of the files were accounted for."""
    plan = list(pieces(config))
    wanted = {name: form for piece in plan for name, form in stored_names(piece, config.stored_bits).items()}
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
        raise ModelError(f"{shards.file_of(extra[0])}: {len(extra)} tensors have no place in a {config.family} of this config.json, the "
                         f"first is {extra[0]}; fetch config.json and weights of one release")  # fmt: skip
    for name, (shape, types) in wanted.items():
        entry = shards.entry(name)
        if entry.shape != shape:
            raise ModelError(f"{shards.file_of(name)}: {name} has shape {list(entry.shape)}, config.json asks for {list(shape)}; fetch "
                             "config.json and weights of one release")  # fmt: skip
        if entry.dtype not in types:
            raise ModelError(f"{shards.file_of(name)}: {name} is stored as {entry.dtype}; only {', '.join(types)} is read there; use the "
                             "bfloat16 checkpoint (FP8 and other packed formats are not supported)")  # fmt: skip
    return plan


def stored_names(piece: Piece, bits: int) -> dict[str, tuple[tuple[int, ...], tuple[str, ...]]]:
    """Names in the files that hold one piece, each with its shape and the types it may have."""
    if not bits or len(piece.shape) == 1:
        return {piece.source: (piece.shape, FLOATS)}
    rows, columns = piece.shape
    form = stored_form(rows, columns, bits_of(piece.target, bits))
    return {piece.source + suffix: (shape, (kind,)) for suffix, (shape, kind) in form.items()}


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


def read_rows(shards: Shards, name: str) -> Iterator[tuple[int, Tensor]]:
    """One tensor as stored, in blocks of rows of about BLOCK_BYTES: (first row, block)."""
    entry = shards.entry(name)
    rows, row_bytes = entry.shape[0], entry.bytes // entry.shape[0]
    step = max(1, BLOCK_BYTES // row_bytes)
    for start in range(0, rows, step):
        block = torch.empty(min(step, rows - start), *entry.shape[1:], dtype=TORCH_DTYPES[entry.dtype])
        shards.read_into(name, byte_view(block), start * row_bytes)
        yield start, block


def stored_dtype(shards: Shards, plan: list[Piece]) -> torch.dtype:
    """The float type that holds most of the bytes: norms may be wider than matrices."""
    counts: Counter[str] = Counter()
    for piece in plan:
        entry = shards.entry(piece.source)
        counts[entry.dtype] += entry.bytes if entry.dtype in FLOATS else 0
    return TORCH_DTYPES[counts.most_common(1)[0][0]]


@dataclass
class Filler:
    """Gives every parameter memory on `device` and its values, one parameter after the other.

    Matrices are kept in `bits` where that is not 0: read as they are stored, or rounded as they come.
    """

    decoder: Decoder
    shards: Shards
    device: torch.device
    dtype: torch.dtype
    bits: int

    def fill(self, plan: list[Piece], progress: Progress) -> None:
        by_target: dict[str, list[Piece]] = defaultdict(list)
        for piece in plan:
            by_target[piece.target].append(piece)
        read = 0
        for target, parts in by_target.items():
            if self.bits and len(parts[0].shape) == 2:
                self._put_quantized(target, parts)
            else:
                place, _, name = target.rpartition(".")
                setattr(self.decoder.get_submodule(place), name, nn.Parameter(self._float(parts), requires_grad=False))
            read += sum(self.shards.entry(piece.source).bytes for piece in parts)
            progress.update((read >> 20) - progress.done)
        self._tie()
        self.decoder.rotaries.to(self.device)
        unfilled = [name for name, tensor in [*self.decoder.named_parameters(), *self.decoder.named_buffers()] if tensor.is_meta]
        assert not unfilled, f"parameters without values: {unfilled[:3]}"

    def _float(self, parts: list[Piece]) -> Tensor:
        """Straight into place where the stored type is the wanted one, else block by block."""
        values = torch.empty(_rows(parts), *parts[0].shape[1:], dtype=self.dtype)
        for piece in parts:
            place = values[piece.start : piece.start + piece.shape[0]]
            if TORCH_DTYPES[self.shards.entry(piece.source).dtype] == self.dtype:
                self.shards.read_into(piece.source, byte_view(place))
            else:
                for start, block in read_rows(self.shards, piece.source):
                    place[start : start + len(block)] = block
        return values.to(self.device)

    def _put_quantized(self, target: str, parts: list[Piece]) -> None:
        """Replace a module by its quantised form."""
        columns, bits = parts[0].shape[1], bits_of(target, self.bits)
        form = stored_form(_rows(parts), columns, bits)
        values = {suffix: torch.empty(shape, dtype=TORCH_DTYPES[kind]) for suffix, (shape, kind) in form.items()}
        for piece in parts:
            rows = {suffix: value[piece.start : piece.start + piece.shape[0]] for suffix, value in values.items()}
            if self.decoder.config.stored_bits:
                for suffix, part in rows.items():
                    self.shards.read_into(piece.source + suffix, byte_view(part))
            else:
                round_into(rows, read_rows(self.shards, piece.source), bits)
        values = {suffix: value.to(self.device) for suffix, value in values.items()}
        place, _, _ = target.rpartition(".")
        if target == "embedding.weight":
            self.decoder.embedding = QuantizedEmbedding(values, columns, self.dtype)
            return
        parent, _, name = place.rpartition(".")
        bias = None if target == "head.weight" else self.decoder.get_submodule(place).bias
        terms = 2 if name == "down" else 1  # the product of gate and up has few, very large values
        setattr(self.decoder.get_submodule(parent), name, QuantizedLinear(values, columns, bias, terms))  # type: ignore[arg-type]

    def _tie(self) -> None:
        decoder = self.decoder
        if not decoder.config.tied:
            return
        if isinstance(decoder.embedding, QuantizedEmbedding):
            decoder.head = QuantizedLinear(decoder.embedding.parts, decoder.config.hidden, None)
        else:
            decoder.head.weight = decoder.embedding.weight


def _rows(parts: list[Piece]) -> int:
    return max(piece.start + piece.shape[0] for piece in parts)


def round_into(places: dict[str, Tensor], blocks: Iterator[tuple[int, Tensor]], bits: int) -> None:
    """Quantise a float matrix into given memory, block by block: rounding needs several copies of what it rounds."""
    for start, block in blocks:
        for suffix, part in quantize(block, bits).items():
            places[suffix][start : start + len(block)] = part
