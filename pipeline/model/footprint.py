"""Bytes a checkpoint needs in memory, by precision and context length; exact, from shapes alone."""

from __future__ import annotations

import math

from pipeline.model.config import ModelConfig
from pipeline.model.layout import pieces
from pipeline.model.safetensors_file import ITEM_BYTES
from pipeline.model.stored_form import bits_of, stored_form

PRECISIONS = {"float32": (4, 0), "bfloat16": (2, 0), "int8": (2, 8), "int4": (2, 4)}  # bytes of a float, bits of a matrix


def weight_bytes(config: ModelConfig, precision: str) -> int:
    """All parameters in one of PRECISIONS; under int8 and int4 norms and biases stay bfloat16."""
    width, bits = PRECISIONS[precision]
    total = 0
    for piece in pieces(config):
        if not bits or len(piece.shape) == 1:
            total += math.prod(piece.shape) * width
        else:
            form = stored_form(piece.shape[0], piece.shape[1], bits_of(piece.target, bits))
            total += sum(math.prod(shape) * ITEM_BYTES[kind] for shape, kind in form.values())
    return total


def parameter_count(config: ModelConfig) -> int:
    """Numbers in all tensors, a tied head once."""
    return sum(math.prod(piece.shape) for piece in pieces(config))


def kv_bytes(config: ModelConfig, tokens: int, width: int = 2) -> int:
    """Keys and values of one sequence of so many tokens. Layers with a window are counted in full: the cache keeps all pages."""
    return config.kv_bytes_per_token * tokens * width // 2
