"""Answers on their way to the store: every few seconds the finished ones, and what is drawn of the others, by a thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

import pyarrow as pa

from pipeline.engine.request import Completion
from pipeline.runners.answer_key import key_table
from pipeline.runners.completion_store import CompletionStore, answers_table

FLUSH_ROWS = 20_000  # bounds the memory that waiting answers take
Entry = tuple[bytes, bytes, Completion]  # key, prompt digest, answer


class AnswerWriter:
    """A crash costs at most the work since the last checkpoint; the next one is on disk, not only begun, within `every_s` seconds.

    An error of the thread (a full disk) is raised by the next `between_steps`, or at the end.
    """

    def __init__(self, store: CompletionStore, *, run: str, model: str, every_s: float) -> None:
        self._store, self._run, self._model, self._every_s = store, run, model, every_s
        self._waiting: list[Entry] = []
        self._batch: list[Entry] = []  # what the thread is writing; stays when that fails
        self._thread = ThreadPoolExecutor(1, "answer-writer")
        self._writing: Future[None] | None = None
        self._due_s = time.monotonic() + every_s
        self._took_s = 0.0
        self._left: list[Entry] = []  # unfinished answers that the next run of the same goes on from

    def __enter__(self) -> AnswerWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._thread.shutdown()
        self._batch += self._waiting
        try:
            self._write(None if kind else self._left)
        except BaseException:
            if kind is None:
                raise

    def add(self, key: bytes, prompt: bytes, completion: Completion) -> None:
        """Take one finished answer (never a failed one)."""
        self._waiting.append((key, prompt, completion))

    def between_steps(self, under_way: Callable[[], list[Entry]], last: bool = False) -> None:
        """To be called when every finished answer has been added. under_way: the unfinished ones; last: no step follows."""
        if self._writing is not None and self._writing.done():
            writing, self._writing = self._writing, None
            writing.result()
        if last:
            self._left = under_way()
        elif self._writing is None and (time.monotonic() >= self._due_s or len(self._waiting) >= FLUSH_ROWS):
            self._batch, self._waiting = self._batch + self._waiting, []
            self._due_s = time.monotonic() + max(self._every_s - 2 * self._took_s, self._every_s / 2)
            self._writing = self._thread.submit(self._write, under_way())

    def _write(self, begun: list[Entry] | None) -> None:
        """begun: what replaces the unfinished answers of the last checkpoint; None leaves them."""
        started = time.monotonic()
        if self._batch:
            self._store.commit(_table(self._batch), run=self._run, model=self._model)
            self._batch = []
        if begun is not None:
            self._store.save_begun(self._run, _table(begun))
        self._took_s = time.monotonic() - started


def _table(entries: list[Entry]) -> pa.Table:
    keys = key_table([key for key, _, _ in entries], [prompt for _, prompt, _ in entries])
    return answers_table(keys, [completion for _, _, completion in entries])
