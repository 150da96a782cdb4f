"""A function over many items in other processes: results in order, a few items in flight, errors where they belong."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from types import ModuleType, TracebackType
from typing import Any, TypeVar

from pipeline.core.errors import OutOfResources

T = TypeVar("T")
MAX_WORKERS = 8
COLLECT_EVERY = 100_000  # new objects
PR_SET_PDEATHSIG = 1


class Workers:
    """Worker processes, started at the first use; count 0 does everything here.

    Forked ones begin at once and suit work that only parses bytes and builds arrays. fresh: new interpreters, for libraries
    whose threads do not survive a fork; they do not run the caller's program again, so that a script needs no main guard.
    prepare: called once in each process before its first item.
    """

    def __init__(self, count: int, fresh: bool = False, prepare: Callable[[], object] | None = None) -> None:
        self.count, self._fresh, self._prepare = count, fresh, prepare
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def map(self, function: Callable[..., T], items: Iterable[tuple[Any, ...]]) -> Iterator[T]:
        """function(*item) for each item. An error of `items` itself is raised after the results of what came before it."""
        if not self.count:
            for item in items:
                yield function(*item)
            return
        if self._pool is None:
            context = multiprocessing.get_context("spawn" if self._fresh else "fork")
            self._pool = ProcessPoolExecutor(self.count, mp_context=context, initializer=_start, initargs=(self._prepare,))
        waiting: deque[Future[T]] = deque()
        failed: BaseException | None = None
        source = iter(items)
        while True:
            try:
                item = next(source)
            except StopIteration:
                break
            except Exception as error:
                failed = error
                break
            with _without_program():  # a process may start at any submit
                waiting.append(self._pool.submit(function, *item))
            if len(waiting) > 2 * self.count:
                yield _result(waiting.popleft())
        while waiting:
            yield _result(waiting.popleft())
        if failed is not None:
            raise failed


@contextmanager
def _without_program() -> Iterator[None]:
    """Processes that start in this block do not import the caller's program."""
    program = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = program


def useful_workers(total_bytes: int, least_bytes: int) -> int:
    """How many processes pay for themselves on so many input bytes; none where processes are not forked safely."""
    if sys.platform != "linux":
        return 0
    count = min(cores(), MAX_WORKERS)
    return count if count > 1 and total_bytes >= least_bytes else 0


def cores() -> int:
    """Processors this process may use."""
    return len(os.sched_getaffinity(0))


@contextlib.contextmanager
def rare_collection() -> Iterator[None]:
    """Look for reference cycles rarely: rows are trees of plain values, and a search among millions of them finds none."""
    before = gc.get_threshold()
    gc.set_threshold(COLLECT_EVERY, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _result(future: Future[T]) -> T:
    try:
        return future.result()
    except BrokenProcessPool:
        raise OutOfResources("a worker process was killed, most likely for lack of memory; free some and run it again") from None


def _start(prepare: Callable[[], object] | None) -> None:
    """Ctrl-C is the parent's to handle; a worker never outlives it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    gc.set_threshold(COLLECT_EVERY)
    if prepare is not None:
        prepare()
