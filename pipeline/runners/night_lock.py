"""One night at a time: a lock that ends with the process that holds it, and says who holds it or who died holding it."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.core.errors import UsageError


def holder(file: Path) -> tuple[str, dict[str, Any]]:
    """State of a lock: `free`, `held` (by a living process) or `stale` (its process died), and what it wrote there."""
    try:
        with open(file, "rb") as handle:
            words = _words(handle.read())
            try:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return "held", words
            return ("stale", words) if words else ("free", {})
    except FileNotFoundError:
        return "free", {}


@contextmanager
def held(file: Path, command: str) -> Iterator[dict[str, Any]]:
    """Hold the lock; gives what a dead holder left there, {} after a clean end. Raises UsageError while another holds it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"{in_words(_words(os.pread(descriptor, 4096, 0)))} is still running here; wait for it, or end that process"
            ) from None
        died = _words(os.pread(descriptor, 4096, 0))
        _write(descriptor, {"pid": os.getpid(), "host": platform.node(), "started": time.time(), "command": command})
        yield died
        _write(descriptor, {})
    finally:
        os.close(descriptor)


def in_words(words: dict[str, Any]) -> str:
    """A holder as a phrase: which command, since when, which process."""
    if not words:
        return "another run"
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(words.get("started", 0)))
    return f"`pipeline {words.get('command', 'night')}` of {since} (process {words.get('pid')} on {words.get('host')})"


def _write(descriptor: int, words: dict[str, Any]) -> None:
    os.ftruncate(descriptor, 0)
    if words:
        os.pwrite(descriptor, json.dumps(words).encode(), 0)


def _words(data: bytes) -> dict[str, Any]:
    try:
        words: dict[str, Any] = json.loads(data or b"{}")
    except ValueError:
        return {}
    return words
