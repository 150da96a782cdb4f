"""Validated rows and small stage folders for the tests of the text floor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.core import schemas
from pipeline.core.manifest import RowCount, StageOutput, write_json
from pipeline.core.paths import Paths

Row = str | list | dict


def validated(rows: list[Row], first: int = 0) -> pa.Table:
    """A VALIDATED table: a text, a list of messages, or a dict of columns (meta and overrides as objects)."""
    out = []
    for number, row in enumerate(rows, first):
        given: dict[str, Any] = dict(row) if isinstance(row, dict) else {"messages" if isinstance(row, list) else "text": row}
        for name in ("meta", "overrides"):
            given[name] = json.dumps(given.get(name, {}), ensure_ascii=False)
        if "messages" in given:
            given["messages"] = json.dumps(given["messages"], ensure_ascii=False)
        out.append(
            {"ordinal": number, "id": f"r{number}", "source_file": "rows.jsonl", "source_line": number + 1, "control": False} | given
        )
    return pa.Table.from_pylist(out, schema=schemas.VALIDATED)


def write_validated(root: Path, rows: list[Row]) -> Paths:
    """A root whose stage validate has put out these rows."""
    paths = Paths(root)
    with StageOutput(paths.validated, "validate") as out:
        out.open("rows", schemas.VALIDATED)
        out.open("rejected", schemas.REJECTED)
        out.write("rows", validated(rows))
        out.finish(inputs=[], rows=RowCount(len(rows), len(rows)), params={})
    return paths


def write_model(paths: Paths, checkpoint: Path, max_model_len: int = 512) -> None:
    """A root whose stage model has found this checkpoint."""
    write_json(paths.model_json, {"source": str(checkpoint), "max_model_len": max_model_len, "stop_ids": []})
