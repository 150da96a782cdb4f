"""A function over many items in other processes: results in order, a few items in flight, errors where they belong."""

from __future__ import annotations

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
from types import TracebackType
from typing import Any, TypeVar

from pipeline.core.errors import OutOfResources

T = TypeVar("T")
MAX_WORKERS = 8
PR_SET_PDEATHSIG = 1


class Workers:
    """Worker processes, started at the first use; count 0 does everything here.

    Processes are forked: they only parse bytes and build arrays, and so need no fresh start of the caller's program.
    """

    def __init__(self, count: int) -> None:
        self.count = count
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
            context = multiprocessing.get_context("fork")
            self._pool = ProcessPoolExecutor(self.count, mp_context=context, initializer=_start)
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
            waiting.append(self._pool.submit(function, *item))
            if len(waiting) > 2 * self.count:
                yield _result(waiting.popleft())
        while waiting:
            yield _result(waiting.popleft())
        if failed is not None:
            raise failed


def useful_workers(total_bytes: int, least_bytes: int) -> int:
    """How many processes pay for themselves on so many input bytes; none where processes are not forked safely."""
    if sys.platform != "linux":
        return 0
    count = min(cores(), MAX_WORKERS)
    return count if count > 1 and total_bytes >= least_bytes else 0


def cores() -> int:
    """Processors this process may use."""
    return len(os.sched_getaffinity(0))


def _result(future: Future[T]) -> T:
    try:
        return future.result()
    except BrokenProcessPool:
        raise OutOfResources("a worker process was killed, most likely for lack of memory; free some and run it again") from None


def _start() -> None:
    """Ctrl-C is the parent's to handle; a worker never outlives it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    gc.set_threshold(100_000)  # rows are trees of plain values: looking for cycles among them finds none
