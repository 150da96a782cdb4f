"""Stopping well: Ctrl-C, SIGTERM and SIGHUP ask for a stop, and so does the death of the `dvc` that called us."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import psutil

from pipeline.core.errors import Interrupted

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PR_SET_PDEATHSIG = 1  # prctl(2): the signal to get when the parent dies
SHELLS = {"sh", "bash", "dash", "zsh", "ksh", "fish"}
PARENT_EVERY_S = 0.5
_libc = ctypes.CDLL(None)  # loaded here: a child between fork and exec should do little


class Interruption:
    """While entered, the first signal only sets `requested`; a second one raises at once.

    Outside the main thread signals cannot be caught: then it never becomes set.
    """

    def __init__(self) -> None:
        self.requested: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            self._before = catch(self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        release(self._before)

    def stop(self) -> bool:
        """Has someone asked to stop?"""
        return self.requested is not None

    def error(self, what: str) -> Interrupted:
        """The error to raise after saving."""
        number = signal.Signals(self.requested or signal.SIGTERM)
        return Interrupted(f"{'Ctrl-C' if number == signal.SIGINT else number.name}: {what}", number)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.requested is not None:
            raise Interrupted("stopped at the second signal; the same command goes on from what was saved", number)
        self.requested = number


@contextmanager
def interruptible() -> Iterator[None]:
    """Between long steps: a signal ends the command with the exit code of the contract and a word on how to go on."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise Interrupted("interrupted; nothing half is left: the same command goes on from what was saved", number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = catch(leave)
    try:
        watch_caller()
        yield
    finally:
        release(before)


def catch(handler: Callable[[int, FrameType | None], None]) -> dict[int, Any]:
    """Handle the signals that ask for a stop; one that is ignored (nohup) stays ignored. Returns the handlers before."""
    return {number: signal.signal(number, handler) for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN}


def release(before: dict[int, Any]) -> None:
    """Put back what `catch` replaced."""
    for number, handler in before.items():
        signal.signal(number, handler)


def die_with_parent() -> None:
    """In a new child on Linux: get SIGTERM when the parent dies, however it dies. For subprocess's preexec_fn."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def watch_caller() -> None:
    """Under DVC, send ourselves SIGTERM when dvc is gone: it leaves its stages running as orphans."""
    if not os.environ.get("DVC_STAGE"):
        return
    parents = psutil.Process().parents()[:2]
    watched = parents if parents and parents[0].name() in SHELLS else parents[:1]

    def watch() -> None:
        while all(process.is_running() for process in watched):
            time.sleep(PARENT_EVERY_S)
        os.kill(os.getpid(), signal.SIGTERM)

    if watched:
        threading.Thread(target=watch, daemon=True, name="watch-dvc").start()
