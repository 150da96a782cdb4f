"""Parquet files as record batches: page checksums verified, damage named, memory bounded by bytes and not by rows.

A megabyte of Parquet can hold gigabytes of text, by one dictionary entry that all rows share. So columns of small
size are read as dictionaries, rows are measured before they are unfolded, and a batch is cut where they grow too large.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.tables.records import CHUNK_BYTES, Damaged
from pipeline.tables.streams import compression_of, raw_blocks

MAX_BATCH_ROWS = 2048
SHARED_BYTES = 4 * 1024 * 1024  # columns above this size in a row group hold their text themselves for the most part
OPTIONS: dict[str, Any] = {
    "page_checksum_verification": True, "memory_map": False, "pre_buffer": False, "coerce_int96_timestamp_unit": "us",
}  # fmt: skip


def batches(file: Path) -> Iterator[pa.RecordBatch]:
    """Record batches in order, of rows that unfold to about CHUNK_BYTES or of a single larger row. Raises Damaged.

    A compressed Parquet file is unpacked to a temporary file first.
    """
    with open(file, "rb") as handle:
        packed = compression_of(handle.read(16))
    if packed is None:
        yield from _batches(file)
        return
    with tempfile.NamedTemporaryFile(suffix=".parquet") as plain:
        for block in raw_blocks(file):
            plain.write(block)
        plain.flush()
        yield from _batches(Path(plain.name))


def row_bytes(batch: pa.RecordBatch) -> Any:
    """int64 bytes each row takes once unfolded; nested columns by their mean."""
    total = np.zeros(batch.num_rows, np.int64)
    for column in batch.columns:
        total += _lengths(column)
    return total


def _batches(file: Path) -> Iterator[pa.RecordBatch]:
    try:
        with pq.ParquetFile(file) as parquet:
            names, rows, shared = parquet.schema_arrow.names, _batch_rows(parquet.metadata), _shared_text(parquet.metadata)
        _check_names(names)
        with pq.ParquetFile(file, read_dictionary=shared, **OPTIONS) as parquet:
            for batch in parquet.iter_batches(batch_size=rows, use_threads=False):
                yield from _cut(batch)
    except (pa.ArrowException, OSError, ValueError) as error:
        message = " ".join(str(error).split())[:300]
        raise Damaged(f"Parquet cannot be read on: {message}") from None


def _batch_rows(metadata: Any) -> int:
    """Rows that are read at once: fewer where rows are large on the file's own account."""
    groups = [metadata.row_group(place) for place in range(metadata.num_row_groups)]
    largest = max((group.total_byte_size / group.num_rows for group in groups if group.num_rows), default=1.0)
    return int(max(1, min(MAX_BATCH_ROWS, 8 * CHUNK_BYTES / max(largest, 1.0))))


def _shared_text(metadata: Any) -> list[str]:
    """Columns of text or bytes at the top level whose values may be shared by many rows."""
    shared: dict[str, bool] = {}
    for place in range(metadata.num_row_groups):
        group = metadata.row_group(place)
        for column in (group.column(at) for at in range(group.num_columns)):
            if column.physical_type == "BYTE_ARRAY" and "." not in column.path_in_schema:
                fits = "RLE_DICTIONARY" in column.encodings and column.total_uncompressed_size <= SHARED_BYTES
                shared[column.path_in_schema] = fits or shared.get(column.path_in_schema, False)
    return sorted(path for path, fits in shared.items() if fits)


def _cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    ends = np.cumsum(row_bytes(batch))
    start = 0
    while start < batch.num_rows:
        before = ends[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + CHUNK_BYTES, side="right")))
        yield _unfolded(batch.slice(start, stop - start))
        start = stop


def _unfolded(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = [column.dictionary_decode() if pa.types.is_dictionary(column.type) else column for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, batch.schema.names)


def _lengths(column: pa.Array) -> Any:
    kind = column.type
    if pa.types.is_dictionary(kind):
        values = _lengths(column.dictionary)
        return np.append(values, 0)[pc.fill_null(column.indices, len(values)).to_numpy(zero_copy_only=False)]
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    return column.nbytes // max(1, len(column))


def _check_names(names: list[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise Damaged(f"column {twice[0]!r} is there twice")
