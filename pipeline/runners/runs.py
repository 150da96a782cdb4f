"""The name of a run in the store, and how `generate.reuse: none` survives its own kill.

Under `any` a run sees every answer. Under `none` it sees only answers of its own name; the name is noted when it begins
and forgotten when every row is answered, so that a killed run goes on and a repeated one starts anew.
"""

from __future__ import annotations

import json
import uuid
from pathlib import Path

from pipeline.core.manifest import write_json


class Run:
    """name: what parts are marked with. begun: whether an earlier process began this very run and did not finish it."""

    def __init__(self, store: Path, wanted: str) -> None:
        """wanted: digest of what the run answers and how, so that only the same work is taken up again."""
        self._note = store / "runs" / f"{wanted[:32]}.json"
        try:
            self.name = str(json.loads(self._note.read_text(encoding="utf-8"))["run"])
            self.begun = True
        except (FileNotFoundError, ValueError, KeyError):
            self.name, self.begun = uuid.uuid4().hex, False
            write_json(self._note, {"run": self.name})

    def done(self) -> None:
        """All is written; the next run of the same work is a new one."""
        self._note.unlink(missing_ok=True)
