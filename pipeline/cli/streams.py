"""Output that nobody reads must not end the work: a closed pipe, a closed descriptor, a full disk behind a redirection."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal


class Tolerant:
    """A text stream whose words go nowhere once they cannot be written."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            self._stream.write(text)
        except OSError:
            self._give_up()
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            self._give_up()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _give_up(self) -> None:
        """Point the descriptor at /dev/null: what is buffered, and what other code writes there, is lost without an error."""
        _discard(self._stream.fileno())


@contextmanager
def tolerant(name: Literal["stdout", "stderr"]) -> Iterator[None]:
    """Within the block, failing writes to sys.stdout or sys.stderr are no errors. A closed stream becomes /dev/null."""
    before = getattr(sys, name)
    if before is None:
        number = {"stdout": 1, "stderr": 2}[name]
        _discard(number)
        before = open(number, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 lives as long as the process
    setattr(sys, name, Tolerant(before))
    try:
        yield
        getattr(sys, name).flush()
    finally:
        setattr(sys, name, before)


def _discard(descriptor: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    if nowhere != descriptor:
        os.dup2(nowhere, descriptor)
        os.close(nowhere)
