"""Events as JSON lines in logs/DAY.jsonl: ids, lengths and hashes, never row text. Seven days are kept, each bounded in bytes.

Several processes may append at once: an event is one write of one line. The terminal gets warnings and errors as text;
`--log-level` (or PIPELINE_LOG_LEVEL, which the stages under DVC inherit) moves both borders.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

LEVELS = ("debug", "info", "warning", "error")
LEVEL_VARIABLE = "PIPELINE_LOG_LEVEL"
KEPT_DAYS = 7
MAX_DAY_BYTES = 16 * 1024 * 1024


class EventLog:
    """Writes events of one stage or command.

    EventLog(paths.logs, "generate").info("part saved", rows=64, bytes=81920)
    """

    def __init__(self, folder: Path, stage: str) -> None:
        self.folder, self.stage = folder, stage

    def debug(self, message: str, **fields: Any) -> None:
        self._event("debug", message, fields)

    def info(self, message: str, **fields: Any) -> None:
        self._event("info", message, fields)

    def warning(self, message: str, **fields: Any) -> None:
        self._event("warning", message, fields)

    def error(self, message: str, **fields: Any) -> None:
        self._event("error", message, fields)

    def _event(self, level: str, message: str, fields: dict[str, Any]) -> None:
        chosen = os.environ.get(LEVEL_VARIABLE, "")
        if LEVELS.index(level) >= LEVELS.index(chosen if chosen in LEVELS else "info"):
            self._append(level, message, fields)
        if LEVELS.index(level) >= LEVELS.index(chosen if chosen in LEVELS else "warning"):
            words = ", ".join(f"{key} {value}" for key, value in fields.items())
            print(f"{self.stage}: {message}{f' ({words})' if words else ''}", file=sys.stderr, flush=True)

    def _append(self, level: str, message: str, fields: dict[str, Any]) -> None:
        now = datetime.now().astimezone()
        event = {
            "time": now.isoformat(timespec="milliseconds"),
            "level": level,
            "stage": self.stage,
            "message": message,
            "pid": os.getpid(),
        }
        line = json.dumps(event | {"fields": fields}, ensure_ascii=False, default=str) + "\n"
        file = self.folder / f"{now:%Y-%m-%d}.jsonl"
        with suppress(OSError):  # a full disk is told by the work, not by its log
            if not file.exists():
                self.folder.mkdir(parents=True, exist_ok=True)
                forget_old(self.folder, keep=KEPT_DAYS - 1)
            elif file.stat().st_size > MAX_DAY_BYTES:
                return
            with open(file, "ab", buffering=0) as handle:
                handle.write(line.encode())


def forget_old(folder: Path, keep: int = KEPT_DAYS) -> list[Path]:
    """Remove all but the newest days' logs; returns what was removed."""
    old = sorted(folder.glob("????-??-??.jsonl"))[: -keep or None]
    for file in old:
        file.unlink(missing_ok=True)
    return old
