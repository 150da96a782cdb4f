"""Ids seen so far, over all files, in 40 bytes a row: sorted runs of digests that are merged as they grow.

Two ids count as the same when 128 bits of their digests agree.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

ENTRY = np.dtype([("hi", "<u8"), ("lo", "<u8"), ("content", "<u8"), ("place", "<i8")])
Entries = npt.NDArray[np.void]


@dataclass(frozen=True)
class Repeats:
    """Rows of a batch whose id was seen before: index in the batch, the place seen first, content equal or not."""

    index: npt.NDArray[np.int64]
    first_place: npt.NDArray[np.int64]
    identical: npt.NDArray[np.bool_]


class SeenIds:
    """The first row of each id stays; every later one is reported."""

    def __init__(self) -> None:
        self._runs: list[Entries] = []

    def add(self, digests: bytes, places: npt.NDArray[np.int64]) -> Repeats:
        """digests: 32 bytes a row, of id and content. places: any number that leads back to the row."""
        words = np.frombuffer(digests, "<u8").reshape(-1, 4)
        batch = np.empty(len(words), ENTRY)
        batch["hi"], batch["lo"], batch["content"], batch["place"] = words[:, 0], words[:, 1], words[:, 2], places
        first = batch.copy()  # for each row the entry that has its id first
        self._first_in_batch(batch, first)
        for run in self._runs:
            _look_up(run, batch, first)
        repeated = np.flatnonzero(first["place"] != batch["place"])
        fresh = batch[first["place"] == batch["place"]]
        self._insert(np.sort(fresh, order=("hi", "lo")))
        same = first["content"][repeated] == batch["content"][repeated]
        return Repeats(repeated.astype(np.int64), first["place"][repeated].copy(), same)

    @staticmethod
    def _first_in_batch(batch: Entries, first: Entries) -> None:
        order = np.lexsort((np.arange(len(batch)), batch["lo"], batch["hi"]))
        ordered = batch[order]
        new = np.ones(len(batch), bool)
        new[1:] = (ordered["hi"][1:] != ordered["hi"][:-1]) | (ordered["lo"][1:] != ordered["lo"][:-1])
        leader = np.maximum.accumulate(np.where(new, np.arange(len(batch)), 0))
        first[order] = ordered[leader]

    def _insert(self, run: Entries) -> None:
        """Merge with every run that is not much longer, so that only a few runs exist."""
        while self._runs and len(self._runs[-1]) <= 2 * len(run):
            merged = np.concatenate([self._runs.pop(), run])
            run = merged[np.lexsort((merged["lo"], merged["hi"]))]
        self._runs.append(run)


def _look_up(run: Entries, batch: Entries, first: Entries) -> None:
    """Where a batch row's id stands in the run, make that entry its first one."""
    if not len(run):
        return
    at = np.searchsorted(run["hi"], batch["hi"])
    todo = np.arange(len(batch))
    while len(todo):  # more than one step only where 64 bits agree by chance
        inside = at[todo] < len(run)
        todo = todo[inside]
        todo = todo[run["hi"][at[todo]] == batch["hi"][todo]]
        hit = run["lo"][at[todo]] == batch["lo"][todo]
        first[todo[hit]] = run[at[todo[hit]]]
        todo = todo[~hit]
        at[todo] += 1
