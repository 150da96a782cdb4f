"""Arrow columns as plain Python values: text, numbers, lists and dicts, as JSON would hold them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.tables.records import Bad


def rows(batch: pa.RecordBatch) -> list[dict[str, Any] | Bad]:
    """Rows as plain Python data. Text with invalid UTF-8 comes out as bytes, to be judged row by row."""
    columns = [_values(column) for column in batch.columns]
    names = batch.schema.names
    faults = {place: value for column in columns for place, value in enumerate(column) if isinstance(value, Bad)}
    return [faults.get(place) or dict(zip(names, values)) for place, values in enumerate(zip(*columns))]


def _values(column: pa.Array) -> list[Any]:
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_finite(column), column, None)  # NaN is how many tools write a missing value
    wanted = _plain_type(column.type)
    if wanted != column.type:
        column = pc.cast(column, wanted)
    kind = column.type
    try:
        values: list[Any] = column.to_pylist()
        return [_decoded(value) for value in values] if pa.types.is_nested(kind) or _is_binary(kind) else values
    except UnicodeDecodeError:
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            return [_decoded(value) for value in pc.cast(column, pa.large_binary()).to_pylist()]
        return [_one(item) for item in column]


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """Times, dates and decimals as text at any depth: Python's own types hold neither nanoseconds nor the year 290000."""
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_time(kind) or pa.types.is_decimal(kind):
        return pa.string()
    if pa.types.is_duration(kind):
        return pa.int64()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_plain_type(field.type)) for field in kind])
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_plain_type(kind.value_type)))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_plain_type(kind.value_type)))
    return kind


def _one(item: pa.Scalar) -> Any:
    try:
        return _decoded(item.as_py())
    except UnicodeDecodeError:
        return Bad("invalid_utf8", "text inside a list or struct is no valid UTF-8")


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _decoded(value: Any) -> Any:
    """bytes that are UTF-8 as text, at any depth."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    if isinstance(value, list):
        return [_decoded(item) for item in value]
    if isinstance(value, dict):
        return {key: _decoded(item) for key, item in value.items()}
    return value
