"""Where a run's time went: phases, counts, a timeline, a line per row. Numbers, ids and hashes; never row text.

Each stage leaves `.work/telemetry/STAGE.json` (and STAGE.rows.parquet); runners/run_record.py joins them into
reports/runs/. Nothing here reaches a stage's outs: clocks and hosts stay outside of them.
"""

from __future__ import annotations

import resource
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.core.errors import NO_SPACE, outcome
from pipeline.core.logging import EventLog
from pipeline.core.manifest import read_json_or_empty, write_json
from pipeline.core.paths import Paths

CHUNK_ROWS = 8192  # rows kept as Python objects before they are packed, about 50 bytes each
TIMELINE_POINTS = 600  # points kept of a timeline; beyond, every second one is dropped
ROWS = pa.schema(
    [
        ("ordinal", pa.int64()),
        ("sample", pa.int32()),
        ("bucket", pa.int32()),
        ("prompt_tokens", pa.int32()),
        ("completion_tokens", pa.int32()),
        ("reused", pa.bool_()),  # taken from the completion store
        ("first_token_s", pa.float64()),  # since the engine took the request; null for reused rows
        ("total_s", pa.float64()),
        ("finish_reason", pa.string()),
    ]
)


class Meter:
    """Numbers of one stage, handed to whoever does the work.

    with meter.phase("prefill"): ...       seconds by phase: read, clean, tokenise, prefill, decode, sample, detokenise, write
    meter.add("prompt_tokens", 135)        counts; a name ending in _max keeps the largest
    meter.sample(running_rows=8)           a point of the timeline
    meter.row(ordinal=0, total_s=1.2, ...) a row of ROWS; columns left out are null
    """

    def __init__(self) -> None:
        self.phases: dict[str, float] = {}
        self.counts: dict[str, float] = {}
        self.timeline: list[dict[str, float]] = []
        self._tables: list[pa.Table] = []
        self._rows: list[dict[str, Any]] = []
        self._start = time.perf_counter()
        self._every_s = 0.0
        self._sampled_s = -1.0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time of a block to a phase."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add_time(name, time.perf_counter() - start)

    def add_time(self, phase: str, seconds: float) -> None:
        self.phases[phase] = self.phases.get(phase, 0.0) + seconds

    def add(self, name: str, value: float) -> None:
        held = self.counts.get(name)
        self.counts[name] = value if held is None else max(held, value) if name.endswith("_max") else held + value

    def sample(self, **values: float) -> None:
        """Keep a point of the timeline; memory stays bounded, points stay evenly spread."""
        now = time.perf_counter() - self._start
        if now - self._sampled_s < self._every_s:
            return
        self._sampled_s = now
        self.timeline.append({"t_s": round(now, 4), **values})
        if len(self.timeline) > TIMELINE_POINTS:
            self.timeline = self.timeline[::2]
            self._every_s = 2 * now / TIMELINE_POINTS

    def row(self, **values: Any) -> None:
        self._rows.append(values)
        if len(self._rows) >= CHUNK_ROWS:
            self._pack()

    def _pack(self) -> None:
        self._tables.append(pa.Table.from_pylist(self._rows, ROWS))
        self._rows = []

    def save(self, work: Path, stage: str) -> None:
        """Write what was collected into the stage's telemetry file."""
        _merge(work, stage, {"phases": self.phases, "counts": self.counts, "timeline": self.timeline})
        self._pack()
        if sum(table.num_rows for table in self._tables):
            pq.write_table(pa.concat_tables(self._tables), folder(work) / f"{stage}.rows.parquet")


@contextmanager
def timed(paths: Paths, stage: str) -> Iterator[None]:
    """Record a stage's wall and processor seconds, peak memory and how it ended, and log it. Used where stages are called."""
    log = EventLog(paths.logs, stage)
    wall, used, started = time.perf_counter(), time.process_time(), time.time()
    log.info("started")
    _merge(paths.work, stage, {"started": started, "exit_code": None})  # stays None when the process is killed
    code, words = 0, None
    try:
        yield
    except BaseException as error:
        if isinstance(error, OSError) and error.errno in NO_SPACE and not error.filename:
            error.filename = str(paths.root)  # a failed write does not say where
        code, words = outcome(error)
        log.info("failed", kind=type(error).__name__, exit_code=code)
        raise
    finally:
        data = {
            "wall_s": round(time.perf_counter() - wall, 4), "cpu_s": round(time.process_time() - used, 4),
            "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, "exit_code": code,
            "error": words,
        }  # fmt: skip
        _merge(paths.work, stage, data)
        if not code:
            log.info("finished", wall_s=data["wall_s"], peak_rss_bytes=data["peak_rss_bytes"])


def folder(work: Path) -> Path:
    return work / "telemetry"


def clear(work: Path) -> None:
    """Forget earlier runs: stages that DVC skips tonight must not show yesterday's times."""
    shutil.rmtree(folder(work), ignore_errors=True)


def collected(work: Path) -> dict[str, dict[str, Any]]:
    """What the stages of this run left, by stage, in the order they started."""
    found = {file.stem: read_json_or_empty(file) for file in sorted(folder(work).glob("*.json"))}
    return dict(sorted(found.items(), key=lambda item: item[1].get("started", 0.0)))


def collected_rows(work: Path) -> pa.Table:
    """The rows of all stages that left some, as one table of ROWS."""
    files = sorted(folder(work).glob("*.rows.parquet"))
    return pa.concat_tables([ROWS.empty_table(), *(pq.read_table(file, schema=ROWS) for file in files)])


def _merge(work: Path, stage: str, data: dict[str, Any]) -> None:
    file = folder(work) / f"{stage}.json"
    write_json(file, read_json_or_empty(file) | data)
