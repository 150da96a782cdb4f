"""A table that is written once, read back once in the same batches, and gone: memory stays flat however many rows there are."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa


class ScratchTable:
    """Batches in an unnamed temporary file (Arrow IPC, zstd); nothing is left behind, whatever happens."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix="scratch-", dir=folder)
        self._name = Path(name)
        self._sink = pa.PythonFile(os.fdopen(handle, "wb", buffering=1 << 20), "w")
        self._writer: pa.ipc.RecordBatchStreamWriter | None = None

    def __enter__(self) -> ScratchTable:
        return self

    def __exit__(self, *exception: object) -> None:
        with contextlib.suppress(Exception):
            self._close()
        self._name.unlink(missing_ok=True)

    def append(self, table: pa.Table) -> None:
        """Add one batch; all have the same schema."""
        if self._writer is None:
            self._writer = pa.ipc.new_stream(self._sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd"))
        self._writer.write_batch(table.combine_chunks().to_batches()[0] if table.num_rows else pa.RecordBatch.from_pylist([], table.schema))

    def __iter__(self) -> Iterator[pa.Table]:
        """The batches in order, each as a table."""
        self._close()
        if self._writer is not None:
            with pa.OSFile(str(self._name)) as source:
                for batch in pa.ipc.open_stream(source):
                    yield pa.Table.from_batches([batch])

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._sink.close()
