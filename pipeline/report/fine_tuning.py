"""Corrected answers as conversations for fine-tuning: questions cleaned by the preprocessor that the pipeline and its service share."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from pipeline.core import schemas
from pipeline.core.params import Params
from pipeline.report.rows import Row
from pipeline.text.preprocess import Preprocessor


def as_messages(pairs: list[tuple[Row, str]], params: Params) -> list[dict[str, Any]]:
    """{"messages": [...]} per corrected answer: the system prompt where there is one, the cleaned question, the corrected answer.

    Rows that the preprocessor rejects are left out, duplicates are kept: every correction was made by hand.
    """
    rows = [
        {"ordinal": place, "id": row.id, "source_file": row.source_file, "source_line": row.source_line, "control": row.control,
         "text": None if row.raw_messages is not None else row.raw,
         "messages": None if row.raw_messages is None else json.dumps(row.raw_messages, ensure_ascii=False),
         "meta": "{}", "overrides": "{}"}
        for place, (row, _) in enumerate(pairs)
    ]  # fmt: skip
    preprocessor = Preprocessor(params.preprocess.model_copy(update={"dedup": "none"}))
    clean, _ = preprocessor.apply(pa.Table.from_pylist(rows, schema=schemas.VALIDATED))
    return [
        {"messages": [*_turns(item, params.prompt.system), _turn("assistant", pairs[item["ordinal"]][1])]} for item in clean.to_pylist()
    ]


def _turns(item: dict[str, Any], system: str | None) -> list[dict[str, str]]:
    turns = [_turn("user", item["text"])] if item["messages"] is None else json.loads(item["messages"])
    has_system = any(turn.get("role") == "system" for turn in turns)
    return [_turn("system", system), *turns] if system and not has_system else turns


def _turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
