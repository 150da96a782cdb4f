"""Stage validate: input files to rows. Every record ends in `rows` or, with a reason, in `rejected`."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.core import schemas
from pipeline.core.errors import DataError, ParamsError, some_of
from pipeline.core.manifest import RowCount, StageOutput, changed_since, describe_file
from pipeline.core.params import DataParams, Params
from pipeline.core.paths import Paths
from pipeline.core.progress import Progress
from pipeline.tables.duplicates import SeenIds
from pipeline.tables.fields import leads_somewhere, near_names
from pipeline.tables.formats import detect_format
from pipeline.tables.readers import PARSERS, READERS
from pipeline.tables.records import Bad, Chunk, Damaged, Record
from pipeline.tables.sources import Source, find_sources, how_to_keep, not_kept, refuse_outside_data
from pipeline.tables.statistics import Statistics
from pipeline.tables.streams import byte_order_mark, is_utf8, read_head
from pipeline.tables.validation import STANDARD, Checked, FileSpec, check_chunk
from pipeline.tables.workers import Workers, rare_collection, useful_workers

log = logging.getLogger(__name__)
PARALLEL_BYTES = 32 * 1024 * 1024  # of input files, from which on worker processes are started
NUMBER_BITS = 40  # a place is file number << 40 | record number


def run(params: Params, paths: Paths) -> dict[str, Any]:
    """Read data.inputs, then data.control; returns the manifest.

    Raises MissingInput, DataError when no input row is readable or, by policy, at damage, bad rows or duplicate ids.
    """
    data = params.data
    sources = find_sources(data.inputs, data.control, paths)
    refuse_outside_data(sources, paths)
    inputs = [describe_file(source.file, source.name) | {"control": source.control} for source in sources]
    if (paths.root / "dvc.yaml").is_file() and (loose := not_kept(sources)):
        names = some_of([source.name for source in loose])
        log.warning("%s: kept by neither Git nor DVC, and a hash alone restores nothing; %s", names, how_to_keep(loose[0]))
    with (
        StageOutput(paths.validated, "validate") as out,
        Progress("validate", total=None, status=paths.work / "status.json") as progress,
        rare_collection(),
        Workers(useful_workers(sum(item["bytes"] for item in inputs), PARALLEL_BYTES)) as workers,
    ):
        out.open("rows", schemas.VALIDATED)
        out.open("rejected", schemas.REJECTED)
        intake = Intake(data, sources, out, workers)
        for count in intake.read_all():
            progress.update(count)
        intake.check_any_row()
        intake.check_fields()
        return out.finish(
            inputs=inputs, rows=intake.count(), params={"data": data}, mixed=changed_since(inputs, paths.root),
            statistics=intake.statistics[False].summary(), control=intake.statistics[True].summary(), files=intake.files,
        )  # fmt: skip


def summary(manifest: dict[str, Any]) -> str:
    """The table shown at the end of the stage: files, rows, rejects by reason."""
    lines = [f"{'file':<48} {'format':<12} {'rows':>10} {'rejected':>9}"]
    for item in manifest["files"]:
        note = "  byte-order mark removed" if item["byte_order_mark"] else ""
        note += f"  DAMAGED: {item['damage']}" if item["damage"] else ""
        lines.append(f"{item['path']:<48} {item['format'] or '?':<12} {item['rows']:>10,} {item['rejected']:>9,}{note}")
    rows = manifest["rows"]
    lines.append(f"{'total':<61} {rows['into']:>10,} {rows['rejected']:>9,}")
    seen = manifest["statistics"]
    if not seen["with"]["reference"]:
        field = manifest["params"]["data"]["reference_field"]
        lines.append(f"  0 of {seen['rows']:,} rows have a reference (data.reference_field: {field}); {near_names(field, seen['fields'])}")
    for part in ("statistics", "control"):
        label = "" if part == "statistics" else " (control)"
        lines += [f"  rejected{label}: {reason} {count:,}" for reason, count in manifest[part]["reasons"].items()]
    return "\n".join(lines)


class Intake:
    """Carries ordinals, ids and counts over all files."""

    def __init__(self, data: DataParams, sources: list[Source], out: StageOutput, workers: Workers) -> None:
        self._data, self._sources, self._out, self._workers = data, sources, out, workers
        self._ordinal = 0
        self._seen = {False: SeenIds(), True: SeenIds()}
        self.statistics = {False: Statistics(), True: Statistics()}
        self.files: list[dict[str, Any]] = []
        self._rejected = 0
        self._first_reject: str | None = None

    def read_all(self) -> Iterator[int]:
        """Read every file; yields the number of records after each chunk."""
        for index, source in enumerate(self._sources):
            if self._is_full(source):
                continue
            report: dict[str, Any] = {"path": source.name, "rows": 0, "rejected": 0, "format": None}
            report |= {"byte_order_mark": None, "damage": None}
            self.files.append(report)
            try:
                report["format"] = kind = self._format(source)
                head = read_head(source.file)
                report["byte_order_mark"] = byte_order_mark(head)
                data = self._reading(source, kind, head)
                spec = FileSpec(source.name, source.control, kind)
                chunks = READERS[kind](source.file, data)
                for checked in self._workers.map(check_chunk, ((chunk, spec, data) for chunk in chunks)):
                    yield self._take(self._limited(checked, source), source, index, report)
                    if self._is_full(source):
                        break
            except Damaged as error:
                yield self._damaged(source, index, report, str(error))
            if not report["rows"]:
                log.warning("%s: holds no rows", source.name)

    def count(self) -> RowCount:
        return RowCount(into=self._ordinal, out=self._ordinal - self._rejected, rejected=self._rejected)

    def check_any_row(self) -> None:
        """Raises DataError when the inputs hold not one good row."""
        statistics = self.statistics[False]
        if statistics.rows == sum(statistics.reasons.values()):
            names = ", ".join(source.name for source in self._sources if not source.control)
            why = f"all {statistics.rows} were rejected, first {self._first_reject}" if statistics.rows else "there is nothing in it"
            raise DataError(f"{names}: not one readable row: {why}")

    def check_fields(self) -> None:
        """Raises ParamsError for a field that params name instead of the usual one and that no input row has."""
        names = self.statistics[False].fields
        for key in ("id_field", "reference_field"):
            path = getattr(self._data, key)
            own_names = any(item["format"] != "openai-batch" for item in self.files)
            if own_names and path != STANDARD[key] and names and not leads_somewhere(path, names):
                raise ParamsError(f"data.{key}: no row has a field {path!r}; {near_names(path, names)}")

    def _format(self, source: Source) -> str:
        """data.format tells the inputs'; control files may differ, so theirs is told by content where that is possible."""
        if self._data.format == "auto":
            return detect_format(source.file, self._data.records is not None, self._data.encoding)
        if not source.control:
            return self._data.format
        with contextlib.suppress(Damaged):
            found = detect_format(source.file)
            return "openai-batch" if self._data.format == "openai-batch" and _is_openai(source, found) else found
        return self._data.format

    def _reading(self, source: Source, kind: str, head: bytes) -> DataParams:
        """Control rows in plain JSON Lines or arrays are read as such, whatever layout and encoding the inputs have."""
        if not source.control or kind not in ("jsonl", "json"):
            return self._data
        changed: dict[str, Any] = {"encoding": "utf-8"} if is_utf8(head) else {}
        if head.lstrip()[:1] == b"[":
            changed["records"] = None
        return self._data.model_copy(update=changed)

    def _is_full(self, source: Source) -> bool:
        limit = self._data.limit_rows
        return limit is not None and not source.control and self.statistics[False].rows >= limit

    def _limited(self, checked: Checked, source: Source) -> Checked:
        """Cut a chunk at data.limit_rows."""
        limit = self._data.limit_rows
        room = checked.records if limit is None or source.control else limit - self.statistics[False].rows
        if room >= checked.records:
            return checked
        keep = sum(place < room for place in checked.places)
        return Checked(
            records=room, places=checked.places[:keep], rows=checked.rows.slice(0, keep), digests=checked.digests[: 32 * keep],
            rejects=[item for item in checked.rejects if item[0] < room], fields=checked.fields,
        )  # fmt: skip

    def _take(self, checked: Checked, source: Source, index: int, report: dict[str, Any]) -> int:
        """Give ordinals, turn repeated ids into rejects, write."""
        rows, places = self._without_repeats(checked, source, index)
        rejects = sorted(checked.rejects, key=lambda item: item[0])
        self._refuse_if_told(rejects, source)
        ordinals = pa.array(np.asarray(places, np.int64) + self._ordinal)
        self._out.write("rows", rows.add_column(0, schemas.VALIDATED.field("ordinal"), ordinals))
        self._out.write("rejected", self._reject_table(rejects, source))
        self.statistics[source.control].add(rows, [item[3].reason for item in rejects], checked.fields)
        self._ordinal += checked.records
        self._rejected += len(rejects)
        report["rows"] += checked.records
        report["rejected"] += len(rejects)
        return checked.records

    def _without_repeats(self, checked: Checked, source: Source, index: int) -> tuple[pa.Table, list[int]]:
        numbers = checked.rows["source_line"].to_numpy()
        repeats = self._seen[source.control].add(checked.digests, numbers + (index << NUMBER_BITS))
        if not len(repeats.rows):
            return checked.rows, checked.places
        ids = checked.rows["id"].take(repeats.rows).to_pylist()
        for at, first, same, row_id in zip(repeats.rows, repeats.first_place, repeats.identical, ids):
            checked.rejects.append((checked.places[at], int(numbers[at]), row_id, self._repeat(int(first), bool(same), row_id)))
        keep = np.ones(checked.rows.num_rows, bool)
        keep[repeats.rows] = False
        return checked.rows.filter(pa.array(keep)), [place for place, good in zip(checked.places, keep) if good]

    def _repeat(self, first: int, same: bool, row_id: str) -> Bad:
        where = f"{self._sources[first >> NUMBER_BITS].name}:{first & ((1 << NUMBER_BITS) - 1)}"
        if same:
            return Bad("duplicate_identical", f"the same row with id {row_id!r} is at {where} already")
        return Bad("duplicate_conflict", f"id {row_id!r} belongs to another row at {where}; the first one stays")

    def _refuse_if_told(self, rejects: list[tuple[int, int, str | None, Bad]], source: Source) -> None:
        for _, number, _, bad in rejects:
            where = f"{source.name}:{number}: {bad.reason}: {bad.detail}"
            if not source.control:
                self._first_reject = self._first_reject or where
            if bad.reason.startswith("duplicate_") and bad.reason != "duplicate_key":
                if self._data.on_duplicate_id == "fail":
                    raise DataError(f"{where}; set data.on_duplicate_id: reject to go on without it")
            elif self._data.on_bad_row == "fail":
                raise DataError(f"{where}; set data.on_bad_row: reject to go on without it")

    def _reject_table(self, rejects: list[tuple[int, int, str | None, Bad]], source: Source) -> pa.Table:
        rows = [
            {
                "ordinal": self._ordinal + place, "id": row_id, "source_file": source.name, "source_line": number,
                "control": source.control, "stage": "validate", "reason": bad.reason, "detail": bad.detail,
            }
            for place, number, row_id, bad in rejects
        ]  # fmt: skip
        return pa.Table.from_pylist(rows, schema=schemas.REJECTED)

    def _damaged(self, source: Source, index: int, report: dict[str, Any], detail: str) -> int:
        """By policy the end, or one reject that stands for what could not be read."""
        report["damage"] = detail
        if self._data.on_damaged_file == "fail":
            raise DataError(
                f"{source.name}: {detail} ({report['rows']:,} rows were read before it); "
                "mend the file, or set data.on_damaged_file: keep_good"
            )
        last = Record(report["rows"] + 1, Bad("damaged_file", detail))
        return self._take(
            check_chunk(Chunk("records", last.number, [last]), FileSpec(source.name, source.control), self._data), source, index, report
        )


def _is_openai(source: Source, kind: str) -> bool:
    """True where the first record of a file looks like an OpenAI-batch request."""
    if kind != "jsonl":
        return False
    chunk: Chunk = next(READERS["jsonl"](source.file, DataParams()), Chunk("records", 1, []))
    first = next(PARSERS[chunk.kind](chunk, DataParams()), None)
    return first is not None and isinstance(first.value, dict) and {"custom_id", "body"} <= first.value.keys()
