"""Ids seen so far, over all files, in 32 bytes a row: sorted runs of digests that are merged as they grow.

Two ids count as the same when 128 bits of their digests agree.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Entries(NamedTuple):
    """Ids as columns: two halves of the id's digest, half the content's digest, the place where it was seen."""

    hi: Array
    lo: Array
    content: Array
    place: Array

    def take(self, index: Array) -> Entries:
        return Entries(*(column[index] for column in self))

    def by_id(self) -> Entries:
        return self.take(np.argsort(self.hi, kind="stable"))


class Repeats(NamedTuple):
    """Rows of a batch whose id was seen before: index in the batch, the place seen first, content equal or not."""

    rows: Array
    first_place: Array
    identical: Array


class SeenIds:
    """The first row of each id stays; every later one is reported."""

    def __init__(self) -> None:
        self._runs: list[Entries] = []

    def add(self, digests: bytes, places: Array) -> Repeats:
        """digests: 32 bytes a row, of id and content. places: any int64 that leads back to the row, none twice."""
        words = np.frombuffer(digests, "<u8").reshape(-1, 4)
        batch = Entries(words[:, 0].copy(), words[:, 1].copy(), words[:, 2].copy(), places.astype(np.int64))
        first = _first_in_batch(batch)
        for run in self._runs:
            _look_up(run, batch, first)
        fresh = first.place == batch.place
        self._insert(batch.take(np.flatnonzero(fresh)).by_id())
        index = np.flatnonzero(~fresh)
        return Repeats(index, first.place[index], first.content[index] == batch.content[index])

    def _insert(self, run: Entries) -> None:
        """Merge with every run that is not much longer, so that only a few runs exist."""
        while self._runs and len(self._runs[-1].hi) <= 2 * len(run.hi):
            last = self._runs.pop()
            run = Entries(*(np.concatenate(pair) for pair in zip(last, run))).by_id()
        self._runs.append(run)


def _first_in_batch(batch: Entries) -> Entries:
    """For each row the first row of the batch with its id."""
    order = np.lexsort((np.arange(len(batch.hi)), batch.lo, batch.hi))
    hi, lo = batch.hi[order], batch.lo[order]
    new = np.ones(len(order), bool)
    new[1:] = (hi[1:] != hi[:-1]) | (lo[1:] != lo[:-1])
    leader = np.maximum.accumulate(np.where(new, np.arange(len(order)), 0))
    first = np.empty(len(order), np.int64)
    first[order] = order[leader]
    return batch.take(first)


def _look_up(run: Entries, batch: Entries, first: Entries) -> None:
    """Where a batch row's id stands in the run, make that entry its first one."""
    at = np.searchsorted(run.hi, batch.hi)
    todo = np.arange(len(batch.hi))
    while len(todo):  # a second round only where 64 bits agree by chance
        todo = todo[at[todo] < len(run.hi)]
        todo = todo[run.hi[at[todo]] == batch.hi[todo]]
        same = run.lo[at[todo]] == batch.lo[todo]
        hit = todo[same]
        first.content[hit], first.place[hit] = run.content[at[hit]], run.place[at[hit]]
        todo = todo[~same]
        at[todo] += 1
