"""One writer per root folder: a lock that the kernel lets go of when its holder dies, so none is ever stale."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.core.errors import UsageError

WAIT_S = 20.0  # an orphan of a killed dvc needs a moment to save


@contextmanager
def folder_lock(file: Path, wait_s: float = WAIT_S) -> Iterator[None]:
    """Hold `file` locked. Raises UsageError naming the holder when another process keeps it for longer than wait_s."""
    with locked(file, wait_s, lambda left: _busy(file, left)) as handle:
        overwrite(handle, f"{os.getpid()}\n".encode())
        yield


@contextmanager
def locked(file: Path, wait_s: float, busy: Callable[[bytes], str]) -> Iterator[int]:
    """Hold `file` locked and give its descriptor. Raises UsageError with `busy` of what the holder wrote there."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        end = time.monotonic() + wait_s
        while not _acquired(handle):
            if time.monotonic() >= end:
                raise UsageError(busy(read_all(handle)))
            time.sleep(0.1)
        yield handle
    finally:
        os.close(handle)


def read_all(handle: int) -> bytes:
    """What the last holder left in a lock file."""
    return os.pread(handle, 4096, 0)


def overwrite(handle: int, data: bytes) -> None:
    """Leave `data` in a lock file instead of what was there."""
    os.ftruncate(handle, 0)
    os.pwrite(handle, data, 0)


def _acquired(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _busy(file: Path, left: bytes) -> str:
    holder = left.decode(errors="replace").strip() or "unknown"
    return f"{file}: process {holder} is working in this folder; wait for it, or stop it (kill {holder}) and try again"
