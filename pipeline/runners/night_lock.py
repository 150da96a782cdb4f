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

from pipeline.runners.lock import locked, overwrite, read_all


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
    with locked(file, 0, lambda left: f"{in_words(_words(left))} is still running here; wait for it, or end that process") as handle:
        died = _words(read_all(handle))
        mine = {"pid": os.getpid(), "host": platform.node(), "started": time.time(), "command": command}
        overwrite(handle, json.dumps(mine).encode())
        yield died
        overwrite(handle, b"")


def in_words(words: dict[str, Any]) -> str:
    """A holder as a phrase: which command, since when, which process."""
    if not words:
        return "another run"
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(words.get("started", 0)))
    return f"`pipeline {words.get('command', 'night')}` of {since} (process {words.get('pid')} on {words.get('host')})"


def _words(data: bytes) -> dict[str, Any]:
    try:
        words = json.loads(data or b"{}")
    except ValueError:
        return {}
    return words if isinstance(words, dict) else {}
