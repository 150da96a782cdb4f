"""The texts of many rows in one array, and back: a text row holds one, a conversation one per turn. Roles never change."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


@dataclass
class Flat:
    """texts: one after the other, rows in order. counts: texts per row, at least one. messages: parsed turns by row number."""

    texts: pa.Array
    counts: np.ndarray
    messages: dict[int, Any] = field(default_factory=dict)

    @cached_property
    def row_of(self) -> np.ndarray:
        """The row of each text."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    def rows_with_null(self, texts: pa.Array) -> np.ndarray:
        """bool per row: whether one of its texts is null."""
        found = np.zeros(len(self.counts), bool)
        found[self.row_of[pc.is_null(texts).to_numpy(zero_copy_only=False)]] = True
        return found

    def characters(self, texts: pa.Array) -> np.ndarray:
        """Characters per row of these texts (all of a row's turns together)."""
        lengths = pc.fill_null(pc.utf8_length(texts), 0).to_numpy(zero_copy_only=False)
        return np.bincount(self.row_of, weights=lengths, minlength=len(self.counts)).astype(np.int64)

    def last(self, texts: pa.Array) -> list[str]:
        """The last of each row's texts: the question of a conversation."""
        found: list[str] = texts.take(pa.array(np.cumsum(self.counts) - 1)).to_pylist()
        return found

    def union(self, names: list[list[str]], order: list[str]) -> list[list[str]]:
        """Per row the names that any of its texts has, in `order`."""
        if not self.messages:
            return names
        found: list[set[str]] = [set() for _ in self.counts]
        for row, some in zip(self.row_of.tolist(), names):
            found[row].update(some)
        return [[name for name in order if name in some] for some in found]

    def columns(self, texts: pa.Array) -> tuple[pa.Array, pa.Array]:
        """The columns text and messages with these texts in place of the rows' own."""
        if not self.messages:
            return texts.cast(pa.string()), pa.nulls(len(self.counts), pa.string())
        values: list[str] = texts.to_pylist()
        starts = (np.cumsum(self.counts) - self.counts).tolist()
        text: list[str | None] = [values[start] for start in starts]
        messages: list[str | None] = [None] * len(starts)
        for i, turns in self.messages.items():
            fresh = iter(values[starts[i] : starts[i] + self.counts[i]])
            text[i] = None
            messages[i] = json.dumps(_map_contents(turns, lambda _, fresh=fresh: next(fresh)), ensure_ascii=False, separators=(",", ":"))
        return pa.array(text, pa.string()), pa.array(messages, pa.string())


def flatten(validated: pa.Table) -> Flat:
    """All texts of a table in one array, rows in order."""
    text = _column(validated, "text")
    raw = _column(validated, "messages")
    if raw.null_count == len(raw):
        return Flat(pc.fill_null(text, ""), np.ones(len(text), np.int64))
    messages = {i: json.loads(value) for i, value in enumerate(raw.to_pylist()) if value is not None}
    parts: list[list[str]] = [[value or ""] for value in text.to_pylist()]
    for i, turns in messages.items():
        parts[i] = list(_contents(turns)) or [""]
    counts = np.array([len(part) for part in parts], np.int64)
    return Flat(pa.array([t for part in parts for t in part], pa.large_string()), counts, messages)


def _contents(turns: Any) -> list[str]:
    """Every text of a conversation in order; whatever else it holds is left alone."""
    found: list[str] = []
    _map_contents(turns, found.append)
    return found


def _map_contents(turns: Any, change: Any) -> Any:
    """The conversation with its texts changed, roles and all other keys as they are."""
    if not isinstance(turns, list):
        return turns
    return [
        {**turn, "content": _map_content(turn["content"], change)} if isinstance(turn, dict) and "content" in turn else turn
        for turn in turns
    ]


def _map_content(content: Any, change: Any) -> Any:
    if isinstance(content, str):
        return change(content)
    if isinstance(content, list):
        return [{**p, "text": change(p["text"])} if isinstance(p, dict) and isinstance(p.get("text"), str) else p for p in content]
    return content


def _column(table: pa.Table, name: str) -> pa.Array:
    return (
        pa.concat_arrays([chunk.cast(pa.large_string()) for chunk in table[name].chunks])
        if table[name].num_chunks
        else pa.array([], pa.large_string())
    )
