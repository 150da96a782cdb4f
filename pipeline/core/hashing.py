"""Digests of files, tables and code. A table's content digest depends on its rows alone, never on how Parquet packs them."""

from __future__ import annotations

import ast
import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

WINDOW_ROWS = 65_536
PACKAGE = Path(__file__).resolve().parents[1]
PACKAGE_DATA = {".txt", ".json", ".css", ".js", ".html"}  # what modules read from their own folder: word lists, templates


def sha256_file(file: Path) -> str:
    """Hex sha256 of a file's bytes."""
    with open(file, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def sha256_json(value: Any) -> str:
    """Hex sha256 of canonical JSON: sorted keys, no blanks, UTF-8. Key order and layout do not count."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def canonical_json(value: Any) -> str:
    """Sorted keys, no blanks, non-ASCII as it is; refuses NaN and infinities."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


class ContentHasher:
    """sha256 over a table's rows, column by column in fixed windows of 65,536 rows.

    Equal over batch sizes, row-group sizes, compression, dictionary encoding and library versions.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._digest = hashlib.sha256(_schema_text(schema).encode())
        self._pending: list[pa.RecordBatch] = []
        self._rows = 0

    def update(self, table: pa.Table) -> None:
        for batch in table.to_batches():
            while batch.num_rows:
                taken = batch.slice(0, WINDOW_ROWS - self._rows)
                batch = batch.slice(taken.num_rows)
                self._pending.append(taken)
                self._rows += taken.num_rows
                if self._rows == WINDOW_ROWS:
                    self._flush()

    def hexdigest(self) -> str:
        """The digest of all rows so far; call it once, at the end."""
        self._flush()
        return self._digest.hexdigest()

    def _flush(self) -> None:
        if self._rows:
            window = pa.Table.from_batches(self._pending, self._schema).combine_chunks()
            self._digest.update(self._rows.to_bytes(8, "little"))
            for column in window.columns:
                _hash_array(self._digest, column.chunk(0))
        self._pending, self._rows = [], 0


def _hash_array(digest: Any, array: pa.Array) -> None:
    kind = array.type
    digest.update(pc.is_valid(array).cast(pa.uint8()).to_numpy(zero_copy_only=False).tobytes())
    if pa.types.is_struct(kind):
        for index in range(kind.num_fields):
            _hash_array(digest, pc.struct_field(array, [index]))
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        digest.update(_int64(pc.fill_null(pc.list_value_length(array), 0)))
        _hash_array(digest, pc.list_flatten(array))
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind):
        valid = pc.drop_null(array).cast(pa.large_binary())
        digest.update(_int64(pc.binary_length(valid)))
        offsets = np.frombuffer(valid.buffers()[1], np.int64, len(valid) + 1, valid.offset * 8) if len(valid) else [0, 0]
        data = valid.buffers()[2]
        if data is not None and len(valid):
            digest.update(memoryview(data)[int(offsets[0]) : int(offsets[-1])])
    else:
        valid = pc.drop_null(array)
        if pa.types.is_boolean(kind):
            valid = valid.cast(pa.uint8())
        digest.update(np.ascontiguousarray(valid.to_numpy(zero_copy_only=False)).tobytes())


def _int64(array: pa.Array) -> bytes:
    data: bytes = array.cast(pa.int64()).to_numpy(zero_copy_only=False).tobytes()
    return data


def _schema_text(schema: pa.Schema) -> str:
    return ";".join(f"{field.name}:{_type_text(field.type)}" for field in schema)


def _type_text(kind: pa.DataType) -> str:
    """Our own words for a type: the names of list items differ between writers and do not count."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"list<{_type_text(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{','.join(f'{field.name}:{_type_text(field.type)}' for field in kind)}>"
    return str(kind).removeprefix("large_")


@cache
def import_closure(module: str) -> tuple[str, ...]:
    """Dotted names of all project modules that `module` imports at any level, itself included, sorted.

    Read from the syntax trees, so optional and function-level imports count too.
    """
    found: set[str] = set()
    todo = [module]
    while todo:
        name = todo.pop()
        if name in found or module_file(name) is None:
            continue
        found.add(name)
        todo.extend(_imports(name))
    return tuple(sorted(found))


def code_files(module: str) -> list[str]:
    """What could change a module's output: the files of its import closure and the package data beside them.

    Sorted, relative to the folder that holds the package.
    """
    sources = {file for name in import_closure(module) if (file := module_file(name))}
    data = {file for folder in {source.parent for source in sources} for file in folder.iterdir() if file.suffix in PACKAGE_DATA}
    return sorted(file.relative_to(PACKAGE.parent).as_posix() for file in sources | data)


def code_digest(module: str) -> str:
    """sha256 over `code_files`."""
    return sha256_json({name: sha256_file(PACKAGE.parent / name) for name in code_files(module)})


def module_file(name: str) -> Path | None:
    """Source file of a project module, None for a module of another package or a name inside a module."""
    head, *rest = name.split(".")
    if head != PACKAGE.name:
        return None
    stem = PACKAGE.joinpath(*rest)
    for file in (stem.with_suffix(".py") if rest else stem, stem / "__init__.py"):
        if file.is_file():
            return file
    return None


def _imports(name: str) -> set[str]:
    file = module_file(name)
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if file else ():
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    parents = {".".join(n.split(".")[:i]) for n in names for i in range(1, len(n.split(".")))}
    return {n for n in names | parents if module_file(n)}
