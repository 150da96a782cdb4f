"""Generating the answers that the store does not have yet, and committing them as they come.

Equal prompts under equal settings share a key and are generated once. A failed row never enters the store, so
running again tries exactly those rows.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.core import schemas
from pipeline.core.progress import Progress
from pipeline.core.telemetry import Meter
from pipeline.engine.request import Completion, Request
from pipeline.runners.answer_writer import AnswerWriter, Entry
from pipeline.runners.build import Answerer
from pipeline.runners.completion_store import ANSWER_SCHEMA, CompletionStore
from pipeline.runners.engine_telemetry import note_completion
from pipeline.runners.interruption import Interruption
from pipeline.runners.lines import Lines, missing_lines
from pipeline.runners.settings import Settings
from pipeline.tables.query import connect

NOT_REACHED = "not_reached: generate.deadline came first; the next run goes on from there"


@dataclass(frozen=True)
class Job:
    """What generates, where answers are kept, and what may end it early."""

    answerer: Answerer
    settings: Settings
    store: CompletionStore
    run: str  # names this run's parts in the store
    every_s: float
    interruption: Interruption
    deadline_s: float | None = None  # time.time() at which to stop

    def late(self) -> bool:
        return self.deadline_s is not None and time.time() >= self.deadline_s

    def stop(self) -> bool:
        return self.interruption.stop() or self.late()


@dataclass
class Outcome:
    """What happened besides the answers in the store: errors by key, why the rest was not reached, and counts."""

    errors: dict[bytes, str] = field(default_factory=dict)
    not_reached: str | None = None
    generated_rows: int = 0
    generated_tokens: int = 0
    reused_rows: int = 0


def generate_missing(job: Job, lines: Lines, prompts: Iterable[pa.Table], progress: Progress, meter: Meter) -> Outcome:
    """Generate in the order of `position` what the store does not have.

    prompts: the table of plan_lines again. Raises Interrupted after saving when a signal asked for it.
    """
    todo = missing_lines(lines, job.store.has(lines.keys))
    outcome = Outcome(reused_rows=lines.table.num_rows - len(lines.refused) - todo.num_rows)
    progress.update(lines.table.num_rows - todo.num_rows)
    if not todo.num_rows:
        job.store.save_begun(job.run, ANSWER_SCHEMA.empty_table())
        return outcome
    under_way = UnderWay(job)
    model = job.answerer.identity.weights_digest
    with AnswerWriter(job.store, run=job.run, model=model, every_s=job.every_s) as writer:

        def stop() -> bool:
            last = job.stop()
            writer.between_steps(under_way.entries, last)
            return last

        for completion in job.answerer.engine.generate(_requests(job, todo, prompts, under_way), stop=stop):
            key, prompt = under_way.keys.pop((completion.id, completion.sample))
            _take(completion, key, prompt, outcome, writer)
            note_completion(meter, completion)
            progress.update(1, tokens=len(completion.token_ids))
    if job.interruption.stop():
        raise job.interruption.error(f"{outcome.generated_rows:,} new answers are saved, and what others have begun; "
                                     "the same command goes on from there")  # fmt: skip
    if job.late():
        outcome.not_reached = NOT_REACHED
    return outcome


class UnderWay:
    """Answers that the engine is at work on, and those begun by an earlier process that it has not taken up yet."""

    def __init__(self, job: Job) -> None:
        self.keys: dict[tuple[int, int], tuple[bytes, bytes]] = {}  # (ordinal, sample): key and prompt digest
        self._engine = job.answerer.engine
        rows = job.store.begun(job.run).to_pylist()
        self._begun: dict[bytes, Entry] = {row["key"]: (row["key"], row["prompt"], unfinished(row)) for row in rows}

    def start(self, ordinal: int, sample: int, key: bytes, prompt: bytes) -> Completion | None:
        """Note an answer that is asked for now; returns what is drawn of it already."""
        self.keys[ordinal, sample] = (key, prompt)
        entry = self._begun.pop(key, None)
        return entry[2] if entry else None

    def entries(self) -> list[Entry]:
        """All of them with what is drawn so far."""
        drawn = [(*self.keys[c.id, c.sample], c) for c in self._engine.under_way()]
        return drawn + list(self._begun.values())


def unfinished(row: dict[str, Any]) -> Completion:
    """What the store holds of an unfinished answer, for the engine to go on from."""
    top = row["top_logprobs"]
    top = None if top is None else tuple(tuple((item["token_id"], item["logprob"]) for item in step) for step in top)
    return Completion(0, 0, tuple(row["token_ids"]), tuple(row["token_logprobs"]), "unfinished", None, top)


def _take(completion: Completion, key: bytes, prompt: bytes, outcome: Outcome, writer: AnswerWriter) -> None:
    outcome.generated_tokens += len(completion.token_ids)
    if completion.error is not None or completion.finish_reason == "error":
        outcome.errors[key] = completion.error or "unknown: the engine gave no reason"
    else:
        outcome.generated_rows += 1
        writer.add(key, prompt, completion)


def _requests(job: Job, todo: pa.Table, prompts: Iterable[pa.Table], under_way: UnderWay) -> Iterator[Request]:
    """Requests in order, noting the key of each."""
    for ordinal, sample, number, key, prompt, token_ids in _in_order(todo, prompts, job.store.folder / "tmp"):
        begun = under_way.start(ordinal, sample, key, prompt)
        yield replace(make_request(job, ordinal, sample, number, token_ids), begun=begun)


def make_request(job: Job, ordinal: int, sample: int, number: int, token_ids: list[int]) -> Request:
    """One answer under the setting of that number."""
    setting = job.settings.setting(number)
    return Request(
        id=ordinal, token_ids=tuple(token_ids), sampling=setting.sampling, sample=sample,
        stopper=job.answerer.stopper(setting.stop), constraint=job.answerer.constraint(setting.json_schema),
    )  # fmt: skip


def _in_order(todo: pa.Table, prompts: Iterable[pa.Table], temporary: Path) -> Iterator[Any]:
    """(ordinal, sample, setting, key, prompt digest, token ids) by position and sample; the sort spills to disk."""
    schema = pa.schema([("ordinal", pa.int64()), ("token_ids", schemas.TOKEN_IDS)])
    batches = (batch for table in prompts for batch in table.select(schema.names).cast(schema).to_batches())
    with connect(temporary) as con:
        con.register("todo", todo)
        con.register("prompts", pa.RecordBatchReader.from_batches(schema, batches))
        query = (
            "SELECT t.ordinal, t.sample, t.setting, t.key, t.prompt, p.token_ids FROM todo t JOIN prompts p USING (ordinal) "
            "ORDER BY t.position, t.sample"
        )
        for batch in con.sql(query).to_arrow_reader(1024):
            yield from zip(*(column.to_pylist() for column in batch.columns))
