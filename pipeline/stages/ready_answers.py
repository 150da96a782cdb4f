"""Answers made elsewhere, put where evaluate and report look for them: `pipeline score` runs this in place of bucket and generate.

No model, so no token ids, no logprobs and no buckets: those columns are null.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.core import schemas
from pipeline.core.manifest import RowCount, StageOutput, changed_since, describe_upstream, read_batches
from pipeline.core.params import Params
from pipeline.core.paths import Paths
from pipeline.tables.query import connect


def run(params: Params, paths: Paths) -> dict[str, Any]:
    """Write data/prompts and data/completions from the rows themselves. A row without an answer fails."""
    inputs = [describe_upstream(folder, paths.root) for folder in (paths.validated, paths.clean)]
    field = params.data.completion_field
    total = failed = 0
    with StageOutput(paths.prompts, "ready_answers") as prompts, StageOutput(paths.completions, "ready_answers") as completions:
        prompts.open("rows", schemas.PROMPTS)
        prompts.open("rejected", schemas.REJECTED)
        completions.open("part", schemas.COMPLETIONS, parts=True)
        for rows in _rows(paths):
            prompts.write("rows", _prompts(rows, total))
            answers = _completions(rows, f"no_answer: the row has no field {field}")
            completions.write("part", answers)
            total += rows.num_rows
            failed += answers.num_rows - answers["error"].null_count
        told: dict[str, Any] = {"params": {"data.completion_field": field}, "mixed": changed_since(inputs, paths.root)}
        prompts.finish(inputs=inputs, rows=RowCount(total, total), **told)
        return completions.finish(inputs=inputs, rows=RowCount(total, total - failed, failed=failed), **told)


def _rows(paths: Paths) -> Iterator[pa.Table]:
    """ordinal, prompt, completion of every clean row, in order."""
    validated = read_batches(paths.validated, columns=["ordinal", "completion"])
    with connect(paths.work / "tmp") as con:
        con.register("validated", _reader(validated, ("ordinal", "completion")))
        con.register("clean", _reader(read_batches(paths.clean, columns=["ordinal", "text", "messages"]), ("ordinal", "text", "messages")))
        query = (
            "SELECT c.ordinal, coalesce(c.text, c.messages) AS prompt, v.completion "
            "FROM clean c JOIN validated v USING (ordinal) ORDER BY c.ordinal"
        )
        for batch in con.sql(query).to_arrow_reader(8192):
            yield pa.Table.from_batches([batch])


def _reader(tables: Iterator[pa.Table], names: tuple[str, ...]) -> pa.RecordBatchReader:
    schema = pa.schema([(name, pa.int64() if name == "ordinal" else pa.string()) for name in names])
    return pa.RecordBatchReader.from_batches(schema, (batch for table in tables for batch in table.cast(schema).to_batches()))


def _prompts(rows: pa.Table, first: int) -> pa.Table:
    known = {
        "ordinal": rows["ordinal"],
        "prompt": rows["prompt"],
        "position": pa.array(range(first, first + rows.num_rows), pa.int64()),
        "overrides": pa.array(["{}"] * rows.num_rows, pa.string()),
    }
    return _filled(known, schemas.PROMPTS, rows.num_rows)


def _completions(rows: pa.Table, error: str) -> pa.Table:
    absent = pc.is_null(rows["completion"])
    known = {
        "ordinal": rows["ordinal"],
        "sample": pa.array([0] * rows.num_rows, pa.int32()),
        "text": rows["completion"],
        "finish_reason": pc.if_else(absent, "error", "stop"),
        "error": pc.if_else(absent, error, pa.scalar(None, pa.string())),
    }
    return _filled(known, schemas.COMPLETIONS, rows.num_rows)


def _filled(known: dict[str, Any], schema: pa.Schema, rows: int) -> pa.Table:
    columns = [known[field.name].cast(field.type) if field.name in known else pa.nulls(rows, field.type) for field in schema]
    return pa.Table.from_arrays([pa.chunked_array([c]) if isinstance(c, pa.Array) else c for c in columns], schema=schema)
