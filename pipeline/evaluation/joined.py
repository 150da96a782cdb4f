"""Answers beside the rows they belong to: one stream over five tables, in order of arrival, in bounded memory.

Tables are read with page checksums by pyarrow; DuckDB joins and sorts them and spills to disk when memory is short.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa

from pipeline.core import schemas
from pipeline.core.manifest import read_batches
from pipeline.core.paths import Paths

MEMORY_LIMIT = "1GB"

COLUMNS = {
    "validated": ["ordinal", "id", "control", "reference", "meta"],
    "clean": ["ordinal", "text", "messages", "language", "steps_applied"],
    "prompts": ["ordinal", "prompt_tokens", "bucket", "overrides"],
    "completions": [
        "ordinal", "sample", "text", "finish_reason", "completion_tokens", "logprob_mean", "logprob_min", "error",
    ],
}  # fmt: skip
_SCHEMAS = {"validated": schemas.VALIDATED, "clean": schemas.CLEAN, "prompts": schemas.PROMPTS, "completions": schemas.COMPLETIONS}
_TABLE = {"completions": "part"}

JOIN = """
    select a.ordinal, a.sample, a.text, a.finish_reason, a.completion_tokens, a.logprob_mean, a.logprob_min, a.error,
           v.id, v.control, v.reference, v.meta, coalesce(c.text, c.messages) as asked, c.language, c.steps_applied,
           p.prompt_tokens, p.bucket, p.overrides
    from completions a
    join validated v using (ordinal)
    left join clean c using (ordinal)
    left join prompts p using (ordinal)
    order by a.ordinal, a.sample
"""


def answers(paths: Paths, rows: int) -> Iterator[pa.Table]:
    """Batches of `rows` joined answers by ordinal and sample; control rows and failed ones are among them."""
    folders = {"validated": paths.validated, "clean": paths.clean, "prompts": paths.prompts, "completions": paths.completions}
    with tempfile.TemporaryDirectory(prefix=".evaluate-", dir=paths.root / "data") as spill, duckdb.connect() as connection:
        connection.execute("set temp_directory = ?", [spill])
        connection.execute(f"set memory_limit = '{MEMORY_LIMIT}'")
        connection.execute("set enable_progress_bar = false")
        for name, folder in folders.items():
            connection.register(name, _reader(folder, name))
        reader = connection.sql(JOIN).to_arrow_reader(rows)
        yield from _exactly(reader, rows)


def _reader(folder: Path, name: str) -> pa.RecordBatchReader:
    columns = COLUMNS[name]
    schema = pa.schema([_SCHEMAS[name].field(column) for column in columns])
    tables = read_batches(folder, _TABLE.get(name, "rows"), columns)
    return pa.RecordBatchReader.from_batches(schema, (b for table in tables for b in table.select(columns).cast(schema).to_batches()))


def _exactly(batches: pa.RecordBatchReader, rows: int) -> Iterator[pa.Table]:
    """Batches of exactly `rows` rows, the last one shorter: what is scored together never depends on the join."""
    pending: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        pending.append(batch)
        count += batch.num_rows
        while count >= rows:
            whole = pa.Table.from_batches(pending).combine_chunks()
            yield whole.slice(0, rows)
            pending, count = whole.slice(rows).to_batches(), count - rows
    if count:
        yield pa.Table.from_batches(pending).combine_chunks()
