"""Answers by key, kept over nights: immutable Parquet parts, each believed only through its commit record.

A part is written under a temporary name, flushed, renamed, then named in a record of its own, so several runs share
one store without a lock. Lookups are one join for all keys. What a part holds is checked before it is used; a damaged
part is set aside and its answers are made again. Knows keys and token ids; no rows, no text.
"""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.core import schemas
from pipeline.core.errors import UsageError
from pipeline.core.hashing import sha256_file
from pipeline.core.manifest import sync, write_json
from pipeline.runners.answer_key import KEY_SCHEMA
from pipeline.tables.query import connect, file_list

FORMAT = 1
ANSWER_SCHEMA = pa.schema(
    [
        *KEY_SCHEMA,
        ("token_ids", schemas.TOKEN_IDS),
        ("token_logprobs", pa.list_(pa.float32())),
        ("top_logprobs", schemas.TOP_LOGPROBS),
        ("finish_reason", pa.string()),
        ("finish_detail", pa.string()),
    ]
)
ROW_GROUP_ROWS = 16_384
MERGED_ROWS = 262_144  # parts of one run are merged into parts of at most this many rows
LOCATION_SCHEMA = pa.schema([("n", pa.int64()), ("file", pa.int64()), ("row", pa.int64())])


@dataclass(frozen=True)
class Part:
    """One committed part, as its record describes it."""

    file: Path
    rows: int
    tokens: int
    bytes: int
    sha256: str
    run: str
    model: str
    created_s: float

    @property
    def record(self) -> Path:
        return self.file.parent.parent / "commits" / f"{self.file.stem}.json"


class CompletionStore:
    """A folder of answers. `run` limits what is seen to the answers of one run (generate.reuse: none)."""

    def __init__(self, folder: Path, run: str | None = None) -> None:
        self.folder, self.run = folder, run
        self._checked: set[Path] = set()
        self._open()

    def parts(self) -> list[Part]:
        """Committed parts in a fixed order; records whose part is gone or has another size do not count."""
        found = []
        for record in sorted((self.folder / "commits").glob("*.json")):
            try:
                data = json.loads(record.read_text(encoding="utf-8"))
                part = Part(file=self.folder / "parts" / data.pop("part"), **data)
                size = part.file.stat().st_size
            except FileNotFoundError:
                continue  # merged or pruned by another process just now
            except (ValueError, TypeError, KeyError) as error:
                self._set_aside(record, f"unreadable record ({error})")
                continue
            if size != part.bytes:
                self._set_aside(record, f"{part.file.name} has {size} bytes, its record says {part.bytes}")
            elif self.run is None or part.run == self.run:
                found.append(part)
        return found

    def locate(self, keys: pa.Table) -> tuple[list[Path], pa.Table]:
        """Where the answers to `keys` (KEY_SCHEMA) lie.

        Returns files and a table LOCATION_SCHEMA: place in `keys`, number of the file, row in it; one line per key
        found. Every file with a hit has been compared with its record's sha256.
        """
        while True:
            parts = self.parts()
            files = [part.file for part in parts]
            if not files or not keys.num_rows:
                return files, LOCATION_SCHEMA.empty_table()
            try:
                found = _join(keys, files)
            except duckdb.Error:
                if not self._sweep_damage(parts):
                    raise
                continue
            hit = [parts[i] for i in pc.unique(found["file"]).to_pylist()]
            if not self._unsound(hit):
                return files, found

    def has(self, keys: pa.Table) -> np.ndarray:
        """bool per key: is there an answer?"""
        _, found = self.locate(keys)
        known = np.zeros(keys.num_rows, bool)
        known[found["n"].to_numpy()] = True
        return known

    def ordered(self, keys: pa.Table, batch_rows: int = 4096) -> Iterator[pa.Table]:
        """The answers to `keys` in the order of `keys`, in batches: column `n` and ANSWER_SCHEMA; absent ones are left out.

        Sorting spills to the store's folder, so memory stays bounded.
        """
        done = -1
        while True:
            files, found = self.locate(keys)
            found = found.filter(pc.greater(found["n"], done))
            if not found.num_rows:
                return
            try:
                for table in _fetch(files, found, self.folder / "tmp", batch_rows):
                    done = table["n"][-1].as_py()
                    yield table
                return
            except duckdb.IOException:
                if all(file.is_file() for file in files):
                    raise
                # another run has merged or pruned a part meanwhile: look again

    def commit(self, answers: pa.Table, *, run: str, model: str) -> Part:
        """Write one part and its record. After this returns the answers survive any crash."""
        name = uuid.uuid4().hex
        return self._commit([answers], name, run=run, model=model)

    def save_begun(self, run: str, answers: pa.Table) -> None:
        """Keep a run's unfinished answers in place of those kept before; none: forget them."""
        file = self._begun_file(run)
        if answers.num_rows:
            _write_whole([answers], file)
        else:
            file.unlink(missing_ok=True)

    def begun(self, run: str) -> pa.Table:
        """The unfinished answers of a run that was stopped (ANSWER_SCHEMA)."""
        try:
            return pq.read_table(self._begun_file(run), schema=ANSWER_SCHEMA, page_checksum_verification=True)
        except FileNotFoundError:
            pass
        except (pa.ArrowException, OSError) as error:
            print(f"warning: completion store: unfinished answers not readable ({error}); they begin anew", file=sys.stderr)
        return ANSWER_SCHEMA.empty_table()

    def forget_begun(self, older_than_s: float) -> None:
        """Drop unfinished answers of all runs that were last saved so long ago."""
        for file in (self.folder / "runs").glob("*.parquet"):
            if file.stat().st_mtime <= time.time() - older_than_s:
                file.unlink(missing_ok=True)

    def merge(self, run: str) -> None:
        """Put one run's small parts together, so that the store does not grow a file a minute."""
        mine = [part for part in self.parts() if part.run == run and part.rows < MERGED_ROWS]
        group: list[Part] = []
        for part in [*mine, None]:
            if group and (part is None or sum(p.rows for p in group) + part.rows > MERGED_ROWS):
                self._merge_group(group)
                group = []
            if part is not None:
                group.append(part)

    def drop(self, part: Part) -> None:
        """Forget one part: first its record, then its bytes."""
        part.record.unlink(missing_ok=True)
        part.file.unlink(missing_ok=True)

    def count_of(self, part: Part, prompts: Iterable[bytes]) -> int:
        """How many answers of a part are to these prompts (prompt digests)."""
        held = pq.read_table(part.file, columns=["prompt"], page_checksum_verification=True)["prompt"]
        return int(pc.sum(pc.is_in(held, pa.array(list(prompts), pa.binary(32)))).as_py() or 0)

    def rewrite_without(self, part: Part, prompts: Iterable[bytes]) -> int:
        """Replace a part by one without the answers to these prompts; returns how many went."""
        prompts = list(prompts)
        gone = self.count_of(part, prompts)
        if gone:
            table = pq.read_table(part.file, schema=ANSWER_SCHEMA, page_checksum_verification=True)
            left = table.filter(pc.invert(pc.is_in(table["prompt"], pa.array(prompts, pa.binary(32)))))
            if left.num_rows:
                self._commit([left], uuid.uuid4().hex, run=part.run, model=part.model, created_s=part.created_s)
            self.drop(part)
        return gone

    def _open(self) -> None:
        marker = self.folder / "format.json"
        if marker.is_file():
            try:
                found = json.loads(marker.read_text(encoding="utf-8"))["format"]
            except (ValueError, KeyError, TypeError):
                raise UsageError(f"{marker}: not readable; is {self.folder} a completion store? name another by generate.store") from None
            if found != FORMAT:
                raise UsageError(
                    f"{self.folder}: this completion store has format {found}, this version reads {FORMAT}; "
                    "use the newer version of the pipeline, or name another folder by generate.store"
                )
        for name in ("parts", "commits", "runs"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        if not marker.is_file():
            write_json(marker, {"format": FORMAT})

    def _commit(self, tables: Iterable[pa.Table], name: str, *, run: str, model: str, created_s: float | None = None) -> Part:
        file = self.folder / "parts" / f"{name}.parquet"
        rows, tokens = _write_whole(tables, file)
        part = Part(file, rows, tokens, file.stat().st_size, sha256_file(file), run, model, created_s or time.time())
        record = {key: value for key, value in vars(part).items() if key != "file"} | {"part": file.name}
        write_json(part.record, record)
        sync(part.record.parent)
        self._checked.add(file)
        return part

    def _begun_file(self, run: str) -> Path:
        return self.folder / "runs" / f"{run}.parquet"

    def _merge_group(self, group: list[Part]) -> None:
        if len(group) < 2 or not all(self._sound(part) for part in group):
            return
        tables = (pq.read_table(part.file, schema=ANSWER_SCHEMA, page_checksum_verification=True) for part in group)
        try:
            self._commit(tables, uuid.uuid4().hex, run=group[0].run, model=group[0].model, created_s=group[-1].created_s)
        except FileNotFoundError:
            return  # another process merged or pruned one of them just now; what it left is whole
        for part in group:
            self.drop(part)

    def _sound(self, part: Part) -> bool:
        """Does the file hold the bytes its record names? A file is read once per run; a damaged one is set aside."""
        if part.file in self._checked:
            return True
        try:
            sound = sha256_file(part.file) == part.sha256
        except FileNotFoundError:
            return False
        if sound:
            self._checked.add(part.file)
        else:
            self._set_aside(part.record, f"{part.file.name} does not hold the bytes that were written")
        return sound

    def _unsound(self, parts: list[Part]) -> list[Part]:
        """Those that do not hold what was written; they are set aside."""
        return [part for part in parts if not self._sound(part)]

    def _sweep_damage(self, parts: list[Part]) -> bool:
        """After a failed read: set damaged parts aside. True when something changed, so that a new try makes sense."""
        return bool(self._unsound(parts)) or self.parts() != parts

    def _set_aside(self, record: Path, why: str) -> None:
        print(f"warning: completion store: {why}; set aside, its answers will be made again", file=sys.stderr)
        try:
            os.replace(record, record.with_suffix(".damaged"))
        except FileNotFoundError:
            pass  # another process did it


def _write_whole(tables: Iterable[pa.Table], file: Path) -> tuple[int, int]:
    """Temporary name, flush, rename; returns rows and tokens."""
    temporary = file.with_name(f".{file.stem}.{os.getpid()}.tmp")
    rows = tokens = 0
    try:
        with pq.ParquetWriter(temporary, ANSWER_SCHEMA, compression="zstd", write_page_checksum=True) as writer:
            for table in tables:
                writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
                rows += table.num_rows
                tokens += pc.sum(pc.list_value_length(table["token_ids"])).as_py() or 0
        sync(temporary)
        os.replace(temporary, file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(file.parent)
    return rows, tokens


def _join(keys: pa.Table, files: list[Path]) -> pa.Table:
    """First place of each key: one hash join over `hi, lo`, confirmed by the whole key."""
    wanted = keys.select(["key", "hi", "lo"]).append_column("n", pa.array(np.arange(keys.num_rows)))
    query = (
        "SELECT n, loc.file, loc.row FROM (SELECT w.n, min({'file': p.file_index::BIGINT, 'row': p.file_row_number}) AS loc "
        f"FROM read_parquet({file_list(files)}, file_row_number = true) p JOIN wanted w USING (hi, lo) WHERE p.key = w.key GROUP BY w.n)"
    )
    with connect() as con:
        con.register("wanted", wanted)
        found: pa.Table = con.sql(query).to_arrow_table()
    return found.cast(LOCATION_SCHEMA)


def _fetch(files: list[Path], found: pa.Table, temporary: Path, batch_rows: int) -> Iterator[pa.Table]:
    columns = ", ".join(f"p.{name}" for name in ANSWER_SCHEMA.names)
    query = (
        f"SELECT f.n, {columns} FROM found f JOIN read_parquet({file_list(files)}, file_row_number = true) p "
        "ON f.file = p.file_index AND f.row = p.file_row_number ORDER BY f.n"
    )
    schema = pa.schema([("n", pa.int64()), *ANSWER_SCHEMA])
    with connect(temporary) as con:
        con.register("found", found)
        for batch in con.sql(query).to_arrow_reader(batch_rows):
            if batch.num_rows:
                yield pa.Table.from_batches([batch]).cast(schema)


def answers_table(keys: pa.Table, completions: Iterable[Any]) -> pa.Table:
    """Engine completions beside their keys (KEY_SCHEMA, same order) as ANSWER_SCHEMA."""
    done = list(completions)
    top = [None if c.top_logprobs is None else [[{"token_id": i, "logprob": p} for i, p in step] for step in c.top_logprobs] for c in done]
    columns = [
        *keys.columns,
        pa.array([c.token_ids for c in done], schemas.TOKEN_IDS),
        pa.array([c.token_logprobs for c in done], pa.list_(pa.float32())),
        pa.array(top, schemas.TOP_LOGPROBS),
        pa.array([c.finish_reason for c in done], pa.string()),
        pa.array([c.finish_detail for c in done], pa.string()),
    ]
    return pa.Table.from_arrays(columns, schema=ANSWER_SCHEMA)
