"""Length buckets and the order of generation, from prompt lengths alone. No torch, no rows.

Rows of one bucket are neighbours in the order, longest bucket first: the longest answers do not start last, and a step
of prompts has little padding. A row's bucket is the smallest edge that holds it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipeline.core.params import BucketParams

QUANTILES = (0.50, 0.90, 0.99)


def plan(lengths: NDArray[np.int64], params: BucketParams) -> tuple[list[int], NDArray[np.int32], NDArray[np.int64]]:
    """Edges (rising, the last one holds every row), each row's edge, and each row's place in the order from 0.

    lengths [rows]: prompt tokens. Edges are rounded up to params.pad_multiple. Equal lengths keep their order of arrival.
    """
    lengths = np.asarray(lengths, np.int64)
    if len(lengths) == 0:
        return [], np.zeros(0, np.int32), np.zeros(0, np.int64)
    edges = _edges(lengths, params)
    bucket = np.asarray(edges, np.int32)[np.searchsorted(edges, lengths, side="left")]
    order = np.lexsort((np.arange(len(lengths)), -lengths))
    position = np.empty(len(lengths), np.int64)
    position[order] = np.arange(len(lengths))
    return edges, bucket, position


def _edges(lengths: NDArray[np.int64], params: BucketParams) -> list[int]:
    wanted = [int(np.quantile(lengths, q, method="higher")) for q in QUANTILES] if params.edges == "auto" else list(params.edges)
    rounded = {_round_up(edge, params.pad_multiple) for edge in wanted} | {_round_up(int(lengths.max()), params.pad_multiple)}
    return sorted(edge for edge in rounded if edge > 0)


def _round_up(value: int, multiple: int) -> int:
    return max(-(-value // multiple), 1) * multiple
