"""What a stage puts out: tables in a new folder, a manifest beside them, swapped into place whole.

Readers never meet a half-written folder: everything is written beside the final place, flushed, renamed at the end.
Nothing here knows the time, the host or Git: same input, same bytes.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import shutil
import threading
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel

from pipeline import __version__
from pipeline.core.errors import MissingInput
from pipeline.core.hashing import ContentHasher, code_digest, sha256_file, sha256_json

FORMAT = "pipeline-manifest/1"
ROW_GROUP_ROWS = 8192
ROW_GROUP_BYTES = 64 * 1024 * 1024
PART_BYTES = 256 * 1024 * 1024  # uncompressed Arrow bytes


@dataclass(frozen=True)
class RowCount:
    """Row conservation of one stage: into = out + rejected + failed."""

    into: int
    out: int
    rejected: int = 0
    failed: int = 0

    def check(self, stage: str) -> None:
        assert self.into == self.out + self.rejected + self.failed, f"stage {stage} lost rows: {self}"


class TableWriter:
    """Streams one table to Parquet with page checksums; `parts` rolls over to a new file by size.

    Bytes depend on the rows alone: row groups are cut at fixed row counts, whatever batches arrive. A part is named after
    its number and its bytes: DuckDB opens a file twice in one query, and with a fixed name the second open may meet the
    next night's file and read it with the old footer.
    """

    def __init__(self, folder: Path, name: str, schema: pa.Schema, parts: bool = False) -> None:
        self._folder, self._name, self._schema, self._parts = folder, name, schema, parts
        self._pending: list[pa.Table] = []
        self._pending_rows = 0
        self._part_bytes = 0
        self._writer: pq.ParquetWriter | None = None
        self._content: ContentHasher | None = None
        self._part_rows = 0
        self.outputs: list[dict[str, Any]] = []
        self.rows = 0

    def write(self, table: pa.Table) -> None:
        """Append rows; columns are taken by name and must have the schema's types."""
        table = table.select(self._schema.names).cast(self._schema)
        self._pending.append(table)
        self._pending_rows += table.num_rows
        while self._pending_rows >= ROW_GROUP_ROWS:
            whole = pa.concat_tables(self._pending)
            self._write_group(whole.slice(0, ROW_GROUP_ROWS))
            rest = whole.slice(ROW_GROUP_ROWS)
            self._pending, self._pending_rows = [rest], rest.num_rows

    def close(self) -> None:
        if self._pending_rows or (not self.outputs and self._writer is None):
            self._write_group(pa.concat_tables([self._schema.empty_table(), *self._pending]))
        self._pending, self._pending_rows = [], 0
        self._close_part()

    def abort(self) -> None:
        """Let go of the open file without writing what is pending."""
        with contextlib.suppress(Exception):
            if self._writer is not None:
                self._writer.close()
        self._writer = None

    def _write_group(self, group: pa.Table) -> None:
        if self._writer is None:
            suffix = f"-{len(self.outputs):05d}" if self._parts else ""
            self._file = self._folder / f"{self._name}{suffix}.parquet"
            self._writer = pq.ParquetWriter(
                self._file, self._schema, compression="zstd", write_page_checksum=True, write_statistics=True)  # fmt: skip
            self._content = ContentHasher(self._schema)
            self._part_bytes = self._part_rows = 0
        groups = max(1, -(-group.nbytes // ROW_GROUP_BYTES))
        self._writer.write_table(group, row_group_size=max(1, -(-group.num_rows // groups)))
        assert self._content is not None
        self._content.update(group)
        self._part_bytes += group.nbytes
        self._part_rows += group.num_rows
        self.rows += group.num_rows
        if self._parts and self._part_bytes >= PART_BYTES:
            self._close_part()

    def _close_part(self) -> None:
        if self._writer is None or self._content is None:
            return
        self._writer.close()
        self._writer = None
        described = describe_file(self._file, self._file.name)
        if self._parts:
            named = self._file.rename(self._file.with_name(f"{self._file.stem}-{described['sha256'][:12]}.parquet"))
            described["path"] = named.name
        self.outputs.append(described | {"rows": self._part_rows, "content_sha256": self._content.hexdigest()})


class StageOutput:
    """Collects a stage's tables in a temporary folder and puts them in place with their manifest.

        with StageOutput(paths.clean, "preprocess") as out:
            out.open("rows", schemas.CLEAN)
            out.open("rejected", schemas.REJECTED)
            out.write("rows", table)
            out.finish(inputs=[...], rows=RowCount(...), params={"preprocess": params.preprocess})

    Leaving the block without `finish`, or by an exception, leaves the old folder as it was.
    """

    def __init__(self, folder: Path, stage: str) -> None:
        self.folder, self.stage = folder, stage
        self.temporary = folder.parent / f".{folder.name}.{os.getpid()}.tmp"
        self._writers: dict[str, TableWriter] = {}
        self._code = code_digest(f"pipeline.stages.{stage}")
        self._finished = False

    def __enter__(self) -> StageOutput:
        sweep_leftovers(self.folder)
        self.temporary.mkdir(parents=True)
        return self

    def __exit__(self, *exception: object) -> None:
        if not self._finished:
            for writer in self._writers.values():
                writer.abort()
            shutil.rmtree(self.temporary, ignore_errors=True)

    def open(self, name: str, schema: pa.Schema, parts: bool = False) -> TableWriter:
        """Declare a table; it is written even when it stays empty."""
        self._writers[name] = TableWriter(self.temporary, name, schema, parts)
        return self._writers[name]

    def write(self, name: str, table: pa.Table) -> None:
        self._writers[name].write(table)

    def finish(
        self, *, inputs: Iterable[dict[str, Any]], rows: RowCount, params: dict[str, Any], mixed: Iterable[str] = (), **extra: Any
    ) -> dict[str, Any]:  # fmt: skip
        """Close the tables, write manifest.json, swap the folder into place, return the manifest.

        inputs: entries of describe_file, taken at the start. mixed: what changed while the stage ran.
        params: the sections or values read, by key path. extra: further keys of the manifest.
        """
        rows.check(self.stage)
        outputs: list[dict[str, Any]] = []
        for writer in self._writers.values():
            writer.close()
            outputs.extend(writer.outputs)
        named = {item["path"] for item in outputs}
        others = sorted(p for p in self.temporary.rglob("*") if p.is_file() and p.relative_to(self.temporary).as_posix() not in named)
        outputs.extend(describe_file(p, p.relative_to(self.temporary).as_posix()) for p in others)
        manifest = stage_manifest(
            self.stage, inputs=inputs, outputs=outputs, rows=rows, params=params, mixed=mixed, code_sha256=self._code, **extra)  # fmt: skip
        write_json(self.temporary / "manifest.json", manifest)
        replace_folder(self.temporary, self.folder)
        self._finished = True
        return manifest


def stage_manifest(
    stage: str, *, inputs: Iterable[dict[str, Any]], outputs: Iterable[dict[str, Any]], rows: RowCount | None,
    params: dict[str, Any], mixed: Iterable[str] = (), code_sha256: str | None = None, **extra: Any,
) -> dict[str, Any]:  # fmt: skip
    """The manifest of one stage as plain data. `code.sha256` covers the stage's import closure.

    code_sha256: the digest taken when the stage began; a different one now marks the run mixed.
    """
    code = code_digest(f"pipeline.stages.{stage}")
    mixed = sorted([*mixed, *(["code"] if code_sha256 not in (None, code) else [])])
    manifest = {
        "format": FORMAT,
        "stage": stage,
        "inputs": list(inputs),
        "outputs": sorted(outputs, key=lambda item: item["path"]),
        "rows": asdict(rows) if rows else None,
        "params": plain(params),
        "code": {"version": __version__, "sha256": code_sha256 or code},
        "packages": package_versions(),
        "mixed": bool(mixed),
        "changed_during_run": mixed,
    }
    return signed(manifest | {key: plain(value) for key, value in extra.items()})


def signed(manifest: dict[str, Any]) -> dict[str, Any]:
    """With `self_sha256` over all other keys, so that `pipeline verify` finds an edited number."""
    rest = {key: value for key, value in manifest.items() if key != "self_sha256"}
    return rest | {"self_sha256": sha256_json(rest)}


def plain(value: Any) -> Any:
    """Params sections, paths and tuples as JSON data."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value.as_posix() if isinstance(value, Path) else value


def package_versions() -> dict[str, str]:
    """Versions of the packages whose results reach the outputs."""
    names = ("duckdb", "numpy", "pyarrow", "safetensors", "tokenizers", "torch")
    return {name: metadata.version(name) for name in names}


def describe_file(file: Path, name: str) -> dict[str, Any]:
    """Path as named in manifests, bytes and sha256 of one file. Raises MissingInput when it is not there."""
    try:
        return {"path": name, "bytes": file.stat().st_size, "sha256": sha256_file(file)}
    except FileNotFoundError:
        raise MissingInput(f"{name}: no such file") from None


def describe_upstream(folder: Path, root: Path) -> dict[str, Any]:
    """The manifest of the stage before, as an input entry. Raises MissingInput naming the stage to run."""
    file = folder / "manifest.json"
    read_manifest(folder)
    return describe_file(file, file.relative_to(root).as_posix())


def changed_since(described: Iterable[dict[str, Any]], root: Path) -> list[str]:
    """Paths among earlier describe_file entries whose bytes are different (or gone) now."""
    changed = []
    for item in described:
        file = root / item["path"]
        if not file.is_file() or file.stat().st_size != item["bytes"] or sha256_file(file) != item["sha256"]:
            changed.append(item["path"])
    return changed


def read_manifest(folder: Path) -> dict[str, Any]:
    """A folder's manifest.json. Raises MissingInput when there is none, or it is torn."""
    file = folder / "manifest.json"
    data = read_json_or_empty(file)
    if "outputs" not in data:
        state = "is torn" if file.is_file() else "not there yet"
        raise MissingInput(f"{file}: {state}; run the stage that makes {folder.name} first, or the whole chain")
    return data


def read_json(file: Path, made_by: str) -> dict[str, Any]:
    """A JSON object that a stage wrote. Raises MissingInput naming the stage that makes it; a torn one counts as missing."""
    data = read_json_or_empty(file)
    if not data:
        state = "is torn" if file.is_file() else "not there yet"
        raise MissingInput(f"{file}: {state}; run `pipeline {made_by}` first, or the whole chain")
    return data


def read_json_or_empty(file: Path) -> dict[str, Any]:
    """A JSON object that is only shown or remembered; {} when there is none, it is torn, or it is something else."""
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def read_table(folder: Path, name: str = "rows", columns: list[str] | None = None) -> pa.Table:
    """A whole table of a stage folder, parts in order."""
    return pa.concat_tables([pq.read_table(file, columns=columns) for file in table_files(folder, name)])


def read_batches(folder: Path, name: str = "rows", columns: list[str] | None = None, rows: int = 8192) -> Iterator[pa.Table]:
    """A table of a stage folder in bounded batches, in order, page checksums verified."""
    for file in table_files(folder, name):
        with pq.ParquetFile(file, page_checksum_verification=True) as parquet:
            for group in range(parquet.num_row_groups):  # one at a time: a batch is never larger than a row group's bytes
                for batch in parquet.iter_batches(batch_size=rows, columns=columns, row_groups=[group]):
                    yield pa.Table.from_batches([batch])


def table_files(folder: Path, name: str) -> list[Path]:
    """Files of one table as the manifest names them: NAME.parquet, or NAME-00000-DIGEST.parquet and so on."""
    outputs = [item["path"] for item in read_manifest(folder)["outputs"]]
    stems = {f"{name}.parquet"}
    return [folder / path for path in sorted(outputs) if path in stems or (path.startswith(f"{name}-") and path.endswith(".parquet"))]


def write_json(file: Path, data: Any) -> None:
    """JSON for people and programs: sorted keys, indented, UTF-8, never NaN; written whole or not at all."""
    write_bytes(file, (json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n").encode())


def write_bytes(file: Path, data: bytes) -> None:
    """Temporary name, flush, rename: a reader sees the old bytes or the new ones."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.{os.getpid()}.{threading.get_native_id()}.tmp")
    try:
        with open(temporary, "wb") as handle:
            handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(temporary, file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def replace_folder(new: Path, final: Path) -> None:
    """Put `new` where `final` is: exchanged in one system call where the file system can, else by two renames."""
    for file in new.rglob("*"):
        if file.is_file():
            sync(file)
    if not final.exists():
        os.rename(new, final)
    else:
        old = final.parent / f".{final.name}.{os.getpid()}.old"
        if _exchange(new, final):
            os.rename(new, old)
        else:
            os.rename(final, old)
            os.rename(new, final)
        shutil.rmtree(old, ignore_errors=True)
    sync(final.parent)


def sweep_leftovers(folder: Path) -> None:
    """Remove what a killed run left beside a folder; if it died between two renames, bring the old folder back."""
    for left in sorted(folder.parent.glob(f".{folder.name}.*.old")):
        if not folder.exists():
            os.rename(left, folder)
    for left in [*folder.parent.glob(f".{folder.name}.*.tmp"), *folder.parent.glob(f".{folder.name}.*.old")]:
        shutil.rmtree(left, ignore_errors=True)


def sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _exchange(a: Path, b: Path) -> bool:
    """renameat2(2) with RENAME_EXCHANGE. False where the kernel or the file system has none."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        done = libc.renameat2(-100, os.fsencode(a), -100, os.fsencode(b), 2)
    except (OSError, AttributeError):
        return False
    if done == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), str(b))
