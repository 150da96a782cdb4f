"""Finished answers on their way to the store: committed every few seconds by a thread of its own."""

from __future__ import annotations

import threading
from types import TracebackType

from pipeline.engine.request import Completion
from pipeline.runners.answer_key import key_table
from pipeline.runners.completion_store import CompletionStore, answers_table

FLUSH_ROWS = 20_000  # bounds the memory that waiting answers take


class AnswerWriter:
    """What is lost in a crash is at most what was added in the last `every_s` seconds.

    An error of the thread (a full disk) is raised by the next `add`, or by `close`.
    """

    def __init__(self, store: CompletionStore, *, run: str, model: str, every_s: float) -> None:
        self._store, self._run, self._model, self._every_s = store, run, model, every_s
        self._waiting: list[tuple[bytes, bytes, Completion]] = []
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closing = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._loop, name="answer-writer", daemon=True)

    def __enter__(self) -> AnswerWriter:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._closing = True
        self._wake.set()
        self._thread.join()
        try:
            self._flush()
        except BaseException:
            if kind is None:
                raise

    def add(self, key: bytes, prompt: bytes, completion: Completion) -> None:
        """Take one finished answer (never a failed one)."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        with self._lock:
            self._waiting.append((key, prompt, completion))
            full = len(self._waiting) >= FLUSH_ROWS
        if full:
            self._wake.set()

    def _loop(self) -> None:
        while not self._closing:
            self._wake.wait(self._every_s)
            self._wake.clear()
            try:
                self._flush()
            except BaseException as error:
                self._error = error

    def _flush(self) -> None:
        with self._lock:
            taken, self._waiting = self._waiting, []
        if not taken:
            return
        try:
            keys = key_table([key for key, _, _ in taken], [prompt for _, prompt, _ in taken])
            self._store.commit(answers_table(keys, [c for _, _, c in taken]), run=self._run, model=self._model)
        except BaseException:
            with self._lock:
                self._waiting = taken + self._waiting
            raise
