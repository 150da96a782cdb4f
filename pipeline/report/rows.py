"""One night's rows, joined: what was asked, what the model saw, what it answered, how that was scored.

Streams in order of arrival, so memory holds one batch whatever the night's size. Works without prompts (answers made
elsewhere), without logprobs and token ids, and without scores of a row. Knows the tables; judges nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.core import schemas
from pipeline.core.manifest import read_batches, read_manifest, read_table, table_files
from pipeline.core.paths import Paths
from pipeline.tables.query import connect

BATCH_ROWS = 4096
REJECTING = ("validated", "clean", "prompts")


@dataclass(slots=True)
class Row:
    """One answer with all that is known of it. Text fields are the row's own words: never trusted, never logged."""

    ordinal: int
    sample: int = 0
    id: str = ""
    control: bool = False
    source_file: str = ""
    source_line: int = 0
    raw: str = ""  # the text as it came
    raw_messages: list[dict[str, Any]] | None = None  # the messages as they came, where the row has messages
    text: str = ""  # the text after cleaning
    prompt: str = ""  # what the model saw; the cleaned text where no prompt was built
    references: list[str] = field(default_factory=list)
    meta: dict[str, Any] = field(default_factory=dict)
    language: str = "und"
    steps: list[str] = field(default_factory=list)
    bucket: int | None = None
    prompt_tokens: int | None = None
    truncated_tokens: int = 0
    answer: str | None = None
    token_ids: np.ndarray | None = None
    token_logprobs: np.ndarray | None = None
    logprob_mean: float | None = None
    logprob_min: float | None = None
    completion_tokens: int | None = None
    finish_reason: str = ""
    finish_detail: str | None = None
    error: str | None = None
    extracted: str | None = None
    scores: dict[str, float] = field(default_factory=dict)  # metrics that apply to this row
    broken: list[str] = field(default_factory=list)  # instructions of the row that its answer does not follow
    hits: list[tuple[str, int, int]] = field(default_factory=list)  # sensitive words: id in the list, start and end in the answer
    rejected: str | None = None  # reason code of a rejected row
    stage: str | None = None  # the stage that rejected it
    detail: str | None = None


def answered(paths: Paths, ordinals: Iterable[int] | None = None) -> Iterator[Row]:
    """Every completion in order of (ordinal, sample), failed ones too; only the given ordinals where there are any."""
    wanted = "" if ordinals is None else "WHERE c.ordinal IN (SELECT unnest($1))"
    query = f"SELECT {_COLUMNS} FROM completions c {_JOINS} {wanted} ORDER BY c.ordinal, c.sample"
    scores = _Scores(paths)
    for batch in _query(paths, query, [] if ordinals is None else [list(ordinals)]):
        yield from _rows(batch, scores)


def inputs(paths: Paths) -> Iterator[tuple[int, str, str, tuple[str, ...]]]:
    """(ordinal, language, cleaned text, references) of every row that was answered, in order."""
    query = "SELECT k.*, v.reference FROM clean k JOIN validated v USING (ordinal) ORDER BY k.ordinal"
    for batch in _query(paths, query, []):
        columns = (batch.column(name).to_pylist() for name in ("ordinal", "language", "text", "messages", "reference"))
        for ordinal, language, text, messages, reference in zip(*columns):
            yield ordinal, language or "und", spoken(text, messages) or "", tuple(_texts(reference))


def extracted(paths: Paths, ordinals: Iterable[int]) -> dict[tuple[int, int], str]:
    """The part of the answer that was scored, by (ordinal, sample), where there is one."""
    wanted = pa.array(sorted(ordinals), pa.int64())
    found: dict[tuple[int, int], str] = {}
    for batch in read_batches(paths.scores, "rows", ["ordinal", "sample", "extracted"]):
        for item in batch.filter(pc.is_in(batch["ordinal"], wanted)).to_pylist():
            if item["extracted"] is not None:
                found.setdefault((item["ordinal"], item["sample"]), item["extracted"])
    return found


def ids(paths: Paths, wanted: set[str]) -> dict[str, list[int]]:
    """Ordinals of the rows that have one of the ids: control rows and rows are numbered apart, so one id may have two."""
    found: dict[str, list[int]] = {}
    for batch in read_batches(paths.validated, "rows", ["ordinal", "id"]):
        for ordinal, name in zip(batch["ordinal"].to_pylist(), batch["id"].to_pylist()):
            if name in wanted:
                found.setdefault(name, []).append(ordinal)
    return found


def rejected(paths: Paths) -> list[Row]:
    """Rows that were turned away on the way in, in order of arrival."""
    rows = []
    for name in REJECTING:
        folder: Path = getattr(paths, name)
        if (folder / "manifest.json").is_file() and table_files(folder, "rejected"):
            for item in read_table(folder, "rejected").to_pylist():
                rows.append(
                    Row(
                        ordinal=item["ordinal"], id=item["id"] or "", source_file=item["source_file"], source_line=item["source_line"],
                        control=bool(item["control"]), rejected=item["reason"], stage=item["stage"], detail=item["detail"],
                    )
                )  # fmt: skip
    return sorted(rows, key=lambda row: row.ordinal)


def manifest_of(folder: Path) -> dict[str, Any] | None:
    """A stage's manifest, None where the stage has not run (no prompts under `pipeline score`)."""
    return read_manifest(folder) if (folder / "manifest.json").is_file() else None


_COLUMNS = """c.*, v.id, v.control, v.source_file, v.source_line, v.text AS raw_text, v.messages AS raw_messages, v.reference, v.meta,
    k.text AS clean_text, k.messages AS clean_messages, k.language, k.steps_applied,
    p.prompt, p.prompt_tokens, p.bucket, p.truncated_tokens"""
_JOINS = "LEFT JOIN validated v USING (ordinal) LEFT JOIN clean k USING (ordinal) LEFT JOIN prompts p USING (ordinal)"
_TABLES = {
    "validated": (schemas.VALIDATED, ["ordinal", "id", "control", "source_file", "source_line", "text", "messages", "reference", "meta"]),
    "clean": (schemas.CLEAN, ["ordinal", "text", "messages", "language", "steps_applied"]),
    "prompts": (schemas.PROMPTS, ["ordinal", "prompt", "prompt_tokens", "bucket", "truncated_tokens"]),
    "completions": (schemas.COMPLETIONS, [name for name in schemas.COMPLETIONS.names if name != "top_logprobs"]),
}  # fmt: skip


def _query(paths: Paths, query: str, parameters: list[Any]) -> Iterator[pa.RecordBatch]:
    """Batches of a query over the night's tables, read with page checksums; joins spill to .work where memory is short."""
    with connect(paths.work / "tmp") as connection:
        connection.execute("SET enable_progress_bar = false")
        for name, (schema, columns) in _TABLES.items():
            if f" {name} " in f"{query} ":  # a stream is read whole once it is registered and named
                connection.register(name, _stream(getattr(paths, name), "part" if name == "completions" else "rows", schema, columns))
        yield from connection.sql(query, params=parameters).to_arrow_reader(BATCH_ROWS)


def _stream(folder: Path, table: str, schema: pa.Schema, columns: list[str]) -> pa.RecordBatchReader:
    """A table as a stream of its columns; an empty one where the stage has not run."""
    wanted = pa.schema([schema.field(name) for name in columns])
    batches = read_batches(folder, table, columns) if (folder / "manifest.json").is_file() else iter(())
    return pa.RecordBatchReader.from_batches(
        wanted, (batch for item in batches for batch in item.select(columns).cast(wanted).to_batches())
    )


class _Scores:
    """Scores of one row at a time, read in step with the rows: stage evaluate writes them in order of (ordinal, sample)."""

    def __init__(self, paths: Paths) -> None:
        self._items = self._read(paths)
        self._next = next(self._items, None)

    def take(self, ordinal: int, sample: int) -> dict[str, float]:
        """Values by metric, those that apply; rows are asked for in rising order."""
        found: dict[str, float] = {}
        while self._next is not None and self._next[0] <= (ordinal, sample):
            if self._next[0] == (ordinal, sample):
                found.update(self._next[1])
            self._next = next(self._items, None)
        return found

    def _read(self, paths: Paths) -> Iterator[tuple[tuple[int, int], Iterator[tuple[str, float]]]]:
        """((ordinal, sample), its values); an answer cut by a batch comes in two pieces."""
        for batch in read_batches(paths.scores, "rows", ["ordinal", "sample", "metric", "value"]):
            ordinals, samples, metrics, values = (batch.column(i).combine_chunks() for i in range(4))
            valid = values.is_valid().to_numpy(zero_copy_only=False)
            keys = np.stack([ordinals.to_numpy(), samples.to_numpy()])[:, valid]
            names, numbers = metrics.filter(valid).to_pylist(), values.drop_null().to_pylist()
            starts = np.flatnonzero(np.diff(keys, axis=1, prepend=-1).any(axis=0)).tolist()
            for start, end in pairwise([*starts, len(names)]):
                yield (int(keys[0, start]), int(keys[1, start])), zip(names[start:end], numbers[start:end])


def _rows(batch: pa.RecordBatch, scores: _Scores) -> Iterator[Row]:
    arrays = {name: _lists(batch.column(name)) for name in ("token_ids", "token_logprobs")}
    names = [name for name in batch.schema.names if name not in arrays]
    columns = [batch.column(name).to_pylist() for name in names]
    for index, values in enumerate(zip(*columns)):
        item = dict(zip(names, values))
        clean = spoken(item["clean_text"], item["clean_messages"]) or ""
        yield Row(
            ordinal=item["ordinal"], sample=item["sample"], id=item["id"] or "", control=bool(item["control"]),
            source_file=item["source_file"] or "", source_line=item["source_line"] or 0,
            raw=spoken(item["raw_text"], item["raw_messages"]) or "",
            raw_messages=json.loads(item["raw_messages"]) if item["raw_messages"] else None, text=clean,
            prompt=clean if item["prompt"] is None else item["prompt"],
            references=_texts(item["reference"]), meta=json.loads(item["meta"]) if item["meta"] else {},
            language=item["language"] or "und", steps=item["steps_applied"] or [], bucket=item["bucket"],
            prompt_tokens=item["prompt_tokens"], truncated_tokens=item["truncated_tokens"] or 0, answer=item["text"],
            token_ids=arrays["token_ids"][index], token_logprobs=arrays["token_logprobs"][index],
            logprob_mean=item["logprob_mean"], logprob_min=item["logprob_min"], completion_tokens=item["completion_tokens"],
            finish_reason=item["finish_reason"] or "", finish_detail=item["finish_detail"], error=item["error"],
            scores=scores.take(item["ordinal"], item["sample"]),
        )  # fmt: skip


def spoken(text: str | None, messages: str | None) -> str | None:
    """A row's own words: its text, or what its messages say, one after the other."""
    if text is not None or messages is None:
        return text
    parts = [message.get("content") for message in json.loads(messages)]
    return "\n".join(part if isinstance(part, str) else json.dumps(part, ensure_ascii=False) for part in parts if part)


def _texts(references: str | None) -> list[str]:
    """Reference texts that are not blank, as stage evaluate takes them."""
    return [text for text in json.loads(references or "[]") if isinstance(text, str) and text.strip()]


def _lists(column: pa.Array) -> list[np.ndarray | None]:
    """A list column as one numpy view per row, None for null; no Python number is made."""
    values = column.values.to_numpy(zero_copy_only=False)
    offsets = column.offsets.to_numpy()
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    return [values[offsets[i] : offsets[i + 1]] if valid[i] else None for i in range(len(column))]
