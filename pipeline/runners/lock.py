"""One writer per root folder: a lock that the kernel lets go of when its holder dies, so none is ever stale."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.core.errors import UsageError

WAIT_S = 20.0  # an orphan of a killed dvc needs a moment to save


@contextmanager
def folder_lock(file: Path, wait_s: float = WAIT_S) -> Iterator[None]:
    """Hold `file` locked. Raises UsageError naming the holder when another process keeps it for longer than wait_s."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _acquire(handle, file, wait_s)
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)


def _acquire(handle: int, file: Path, wait_s: float) -> None:
    end = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= end:
                holder = os.pread(handle, 32, 0).decode(errors="replace").strip() or "unknown"
                raise UsageError(
                    f"{file}: process {holder} is working in this folder; wait for it, or stop it (kill {holder}) and try again"
                ) from None
            time.sleep(0.1)
