"""The key of an answer: everything that can change it, and nothing else.

Batch and page size, workers, paths, file times, order of rows and order of keys in JSON are not in it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.core.hashing import sha256_json
from pipeline.engine.request import Sampling

FORMAT = "pipeline-answer/1"  # raised when the meaning of an ingredient changes: older answers are then not found
KEY_SCHEMA = pa.schema([("key", pa.binary(32)), ("hi", pa.int64()), ("lo", pa.int64()), ("prompt", pa.binary(32))])


@dataclass(frozen=True)
class ModelIdentity:
    """What a run's answers have in common: the model, and the arithmetic that runs it."""

    weights_digest: str
    tokenizer_digest: str
    template_digest: str | None
    dtype: str
    quantization: str
    device_kind: str  # cpu or cuda; the processor's kind is part of `numerics`
    numerics: str  # kernel plan, torch version, kind of processor
    stop_ids: tuple[int, ...]  # tokens that end an answer


@dataclass(frozen=True)
class Setting:
    """How answers are drawn: one per distinct combination of values in a run."""

    sampling: Sampling
    stop: tuple[str, ...] = ()
    json_schema: Any = None
    grammar_version: str | None = None  # of the library that follows json_schema


def setting_digest(model: ModelIdentity, setting: Setting) -> bytes:
    """32 bytes over all ingredients but the prompt and the sample number."""
    ingredients = {
        "format": FORMAT,
        "model": asdict(model) | {"stop_ids": sorted(model.stop_ids)},
        "sampling": asdict(setting.sampling),
        "stop": sorted(set(setting.stop)),
        "json_schema": setting.json_schema,
        "grammar": setting.grammar_version,
    }
    return bytes.fromhex(sha256_json(ingredients))


def prompt_digest(token_ids: Sequence[int] | np.ndarray) -> bytes:
    """32 bytes over a prompt's token ids."""
    return hashlib.sha256(np.ascontiguousarray(token_ids, "<i4").tobytes()).digest()


def answer_key(setting: bytes, prompt: bytes, sample: int) -> bytes:
    """The 32 bytes that name one answer."""
    return hashlib.sha256(setting + prompt + sample.to_bytes(4, "little")).digest()


def key_table(keys: Sequence[bytes], prompts: Sequence[bytes]) -> pa.Table:
    """Keys as KEY_SCHEMA: `hi` and `lo` are their first 16 bytes, what lookups join on."""
    halves = np.frombuffer(b"".join(keys), "<i8").reshape(-1, 4)
    columns = [pa.array(keys, pa.binary(32)), pa.array(halves[:, 0]), pa.array(halves[:, 1]), pa.array(prompts, pa.binary(32))]
    return pa.Table.from_arrays(columns, schema=KEY_SCHEMA)
