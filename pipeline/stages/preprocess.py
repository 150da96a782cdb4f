"""Stage preprocess: validated rows cleaned by the preprocessor that training and service share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from typing import Any

import pyarrow as pa

from pipeline.core import schemas
from pipeline.core.manifest import RowCount, StageOutput, changed_since, describe_upstream, read_batches, read_manifest
from pipeline.core.params import Params, PreprocessParams
from pipeline.core.paths import Paths
from pipeline.core.progress import Progress
from pipeline.core.scratch import ScratchTable
from pipeline.core.telemetry import Meter
from pipeline.tables.workers import MAX_WORKERS, Workers, cores
from pipeline.text.dedup import Deduplicator, Fingerprints
from pipeline.text.preprocess import VALIDATED_COLUMNS, Preprocessor, split_duplicates, step_counts

POOL_FROM_ROWS = 20_000  # fewer are done before worker processes have started
BATCH_ROWS = 8192
Cleaned = tuple[pa.Table, pa.Table, pa.Table, Fingerprints | None, dict[str, float]]


def run(params: Params, paths: Paths) -> dict[str, Any]:
    """Clean validated rows. Every row ends in `rows` or, with a reason, in `rejected`; returns the manifest."""
    section, meter = params.preprocess, Meter()
    upstream = describe_upstream(paths.validated, paths.root)
    total = int(read_manifest(paths.validated)["rows"]["out"])
    preprocessor = Preprocessor(section)
    with StageOutput(paths.clean, "preprocess") as out, Progress("preprocess", total=total, status=paths.work / "status.json") as progress:
        out.open("rows", schemas.CLEAN.with_metadata({"fingerprint": preprocessor.fingerprint}))
        out.open("rejected", schemas.REJECTED)
        tally = Tally()
        for clean, rejected in _results(preprocessor, paths, total, meter, progress):
            with meter.phase("write"):
                out.write("rows", clean)
                out.write("rejected", rejected)
            tally.add(clean, rejected)
        manifest = out.finish(
            inputs=[upstream], mixed=changed_since([upstream], paths.root), params={"preprocess": section},
            rows=RowCount(into=total, out=tally.clean, rejected=tally.rejected), fingerprint=preprocessor.fingerprint,
            row_fingerprint=preprocessor.row_fingerprint,
            steps=[step.describe() | {"rows": tally.steps[step.name]} for step in preprocessor.steps],
            languages=tally.languages, reasons=tally.reasons,
        )  # fmt: skip
    meter.save(paths.work, "preprocess")
    return manifest


class Tally:
    """Counts for the manifest."""

    def __init__(self) -> None:
        self.clean = self.rejected = 0
        self.steps: Counter[str] = Counter()
        self.languages: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()

    def add(self, clean: pa.Table, rejected: pa.Table) -> None:
        self.clean += clean.num_rows
        self.rejected += rejected.num_rows
        self.steps += step_counts(clean)
        self.languages.update(clean["language"].to_pylist())
        self.reasons.update(rejected["reason"].to_pylist())


def _results(preprocessor: Preprocessor, paths: Paths, total: int, meter: Meter, progress: Progress) -> Iterator[tuple[pa.Table, pa.Table]]:
    """Clean and rejected rows, batch by batch in order. With dedup a first pass over everything fills scratch tables."""
    batches = read_batches(paths.validated, columns=VALIDATED_COLUMNS, rows=BATCH_ROWS)
    cleaned = _cleaned(preprocessor.params, batches, total)
    if preprocessor.params.dedup == "none":
        for clean, rejected, _, _, seconds in cleaned:
            _add_times(meter, seconds)
            progress.update(clean.num_rows + rejected.num_rows)
            yield clean, rejected
        return
    with ExitStack() as stack:
        dedup = stack.enter_context(Deduplicator(preprocessor.params.dedup_threshold, paths.work))
        held, gone, origin = (stack.enter_context(ScratchTable(paths.work)) for _ in range(3))
        for clean, rejected, kept, found, seconds in cleaned:
            _add_times(meter, seconds)
            held.append(clean)
            gone.append(rejected)
            origin.append(kept)
            assert found is not None
            dedup.add(found)
            progress.update(clean.num_rows + rejected.num_rows)
        with meter.phase("dedup"):
            duplicates = dedup.duplicates()
        for clean, rejected, kept in zip(held, gone, origin):
            clean, lost = split_duplicates(clean, kept, duplicates)
            yield clean, pa.concat_tables([rejected, lost]).sort_by("ordinal")


def _cleaned(params: PreprocessParams, batches: Iterator[pa.Table], total: int) -> Iterator[Cleaned]:
    """Batches through the preprocessor in order, in worker processes where there are many rows; few are in flight."""
    text = params.model_dump_json()
    count = min(cores(), MAX_WORKERS)
    with Workers(count if total >= POOL_FROM_ROWS and count > 1 else 0, fresh=True) as workers:
        yield from workers.map(_clean, ((text, batch) for batch in batches))


def _clean(params: str, batch: pa.Table) -> Cleaned:
    """One batch: clean and rejected rows, the origin of the clean ones, their fingerprints where duplicates are sought, and the
    seconds each step took."""
    preprocessor = _preprocessor(params)
    meter = Meter()
    clean, rejected = preprocessor.clean(batch, meter)
    kept = preprocessor.kept(batch, clean)
    found = None
    if preprocessor.params.dedup != "none":
        with meter.phase("fingerprints"):
            found = preprocessor.fingerprints(clean, kept)
    return clean, rejected, kept.drop_columns(["text", "messages", "overrides"]), found, meter.phases


def _add_times(meter: Meter, seconds: dict[str, float]) -> None:
    for phase, value in seconds.items():
        meter.add_time(phase, value)


@cache
def _preprocessor(params: str) -> Preprocessor:
    return Preprocessor(PreprocessParams.model_validate_json(params))
