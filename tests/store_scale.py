"""The completion store at the size of years: 1,000,000 keys looked up among 10,000,000 answers, in time and memory.

By hand: PYTHONPATH=. python tests/store_scale.py [--answers 10000000] [--keys 1000000] [--tokens 16] [--folder DIR]
"""

from __future__ import annotations

import argparse
import hashlib
import resource
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa

from pipeline.core import schemas
from pipeline.runners.answer_key import KEY_SCHEMA
from pipeline.runners.completion_store import ANSWER_SCHEMA, CompletionStore

PART_ROWS = 250_000


def keys(numbers: np.ndarray) -> pa.Table:
    """A pseudo-random key per number (splitmix64, four times)."""
    halves = np.empty((len(numbers), 4), np.uint64)
    for column in range(4):
        x = numbers.astype(np.uint64) * np.uint64(4) + np.uint64(column) + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        halves[:, column] = x ^ (x >> np.uint64(31))
    signed = halves.view(np.int64)
    whole = pa.FixedSizeBinaryArray.from_buffers(pa.binary(32), len(numbers), [None, pa.py_buffer(halves.tobytes())])
    return pa.Table.from_arrays([whole, pa.array(signed[:, 0]), pa.array(signed[:, 1]), whole], schema=KEY_SCHEMA)


def answers(numbers: np.ndarray, tokens: int) -> pa.Table:
    offsets = pa.array(np.arange(len(numbers) + 1, dtype=np.int32) * tokens)
    rng = np.random.default_rng(int(numbers[0]))
    ids = pa.ListArray.from_arrays(offsets, pa.array(rng.integers(0, 49_152, len(numbers) * tokens, dtype=np.int32)))
    logprobs = pa.ListArray.from_arrays(offsets, pa.array(-rng.random(len(numbers) * tokens, dtype=np.float32)))
    rest = [pa.nulls(len(numbers), schemas.TOP_LOGPROBS), pa.array(["length"] * len(numbers)), pa.nulls(len(numbers), pa.string())]
    return pa.Table.from_arrays([*keys(numbers).columns, ids.cast(schemas.TOKEN_IDS), logprobs, *rest], schema=ANSWER_SCHEMA)


class Peak:
    """Highest resident memory while entered, in bytes above where it began."""

    def __enter__(self) -> Peak:
        self._process = psutil.Process()
        self.start = self.highest = self._process.memory_info().rss
        self._going = True
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        self._since = time.monotonic()
        return self

    def __exit__(self, *exception: object) -> None:
        self.seconds = time.monotonic() - self._since
        self._going = False
        self._thread.join()

    def _watch(self) -> None:
        while self._going:
            self.highest = max(self.highest, self._process.memory_info().rss)
            time.sleep(0.01)

    def __str__(self) -> str:
        return f"{self.seconds:.1f} s, {(self.highest - self.start) / 1e6:.0f} MB above {self.start / 1e6:.0f} MB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answers", type=int, default=10_000_000)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        store = CompletionStore(Path(folder))
        with Peak() as peak:
            for start in range(0, options.answers, PART_ROWS):
                numbers = np.arange(start, min(start + PART_ROWS, options.answers))
                store.commit(answers(numbers, options.tokens), run="scale", model="m")
        size = sum(part.bytes for part in store.parts())
        print(f"written   {options.answers:,} answers in {len(store.parts())} parts, {size / 1e9:.2f} GB: {peak}")
        rng = np.random.default_rng(0)
        wanted = keys(rng.choice(2 * options.answers, options.keys, replace=False))  # half of them are there
        fresh = CompletionStore(Path(folder))
        with Peak() as peak:
            known = fresh.has(wanted)
        print(f"looked up {options.keys:,} keys, {int(known.sum()):,} there, every part with a hit hashed: {peak}")
        with Peak() as peak:
            again = int(fresh.has(wanted).sum())
        print(f"again     {again:,} there, nothing hashed again: {peak}")
        digest = hashlib.sha256()
        with Peak() as peak:
            rows = 0
            for table in fresh.ordered(wanted):
                rows += table.num_rows
                digest.update(table["n"].combine_chunks().buffers()[1])
        print(f"fetched   {rows:,} answers in order: {peak}")
    print(f"peak resident memory of the whole run: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3:.0f} MB")


if __name__ == "__main__":
    main()
