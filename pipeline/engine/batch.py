"""From a plan (integers) to the tensors of one step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pipeline.engine.scheduler import Chunk, Plan
from pipeline.model.kv_cache import RaggedBatch
from pipeline.model.linear import padded_rows


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's input. N tokens of all rows and M places whose logits are wanted, both padded to a known shape."""

    token_ids: Tensor  # int64 [N]
    positions: Tensor  # int64 [N]
    logits_at: Tensor  # int64 [M]
    ragged: RaggedBatch
    sampled: list[Chunk]  # the chunks whose next token is drawn, in the order of logits_at


def build_batch(plan: Plan, page_size: int, device: torch.device) -> Batch:
    """Lay the chunks of a plan one after the other; padding tokens have id 0, position 0 and no row."""
    chunks = plan.chunks
    counts = np.array([chunk.count for chunk in chunks], np.int32)
    past = np.array([chunk.start for chunk in chunks], np.int32)
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    real = int(starts[-1])
    token_ids = np.zeros(padded_rows(real), np.int64)
    positions = np.zeros_like(token_ids)
    tables = np.zeros((len(chunks), max(len(chunk.sequence.pages) for chunk in chunks)), np.int32)
    for row, chunk in enumerate(chunks):
        token_ids[starts[row] : starts[row + 1]] = chunk.sequence.tokens[chunk.start : chunk.start + chunk.count]
        positions[starts[row] : starts[row + 1]] = np.arange(chunk.start, chunk.start + chunk.count)
        tables[row, : len(chunk.sequence.pages)] = chunk.sequence.pages
    ends = [row for row, chunk in enumerate(chunks) if chunk.ends]
    logits_at = np.zeros(padded_rows(len(ends)), np.int64)
    logits_at[: len(ends)] = starts[1:][ends] - 1
    ids, places, at = (torch.from_numpy(x).to(device) for x in (token_ids, positions, logits_at))
    return Batch(ids, places, at, RaggedBatch(starts, past, tables, page_size), [chunks[row] for row in ends])
