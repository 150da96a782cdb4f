"""Progress of long work: a tqdm bar on a terminal, one line a minute elsewhere, and a small file for `pipeline status`."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from tqdm import tqdm

LINE_EVERY_S = 60.0
STATUS_EVERY_S = 1.0


class Progress:
    """Counts units of work. `rate` adds a second counted quantity shown per second (tokens).

    with Progress("generate", total=1000, unit="rows", status=paths.work / "status.json") as progress:
        progress.update(1, tokens=64)
    """

    def __init__(self, stage: str, *, total: int | None, unit: str = "rows", status: Path | None = None) -> None:
        self.stage, self.total, self.unit, self.status = stage, total, unit, status
        self.done = 0
        self.tokens = 0
        self._start = self._line_at = time.monotonic()
        self._status_at = 0.0
        self._bar: tqdm[Any] | None = None
        if sys.stderr.isatty():
            self._bar = tqdm(total=total, unit=f" {unit}", desc=stage, dynamic_ncols=True, leave=True)

    def __enter__(self) -> Progress:
        self._write_status("running")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.close()
        self._write_status("stopped" if kind else "done")

    def update(self, count: int, tokens: int = 0) -> None:
        """Add finished units, and tokens made for them."""
        self.done += count
        self.tokens += tokens
        now = time.monotonic()
        if self._bar is not None:
            if self.tokens:
                self._bar.set_postfix_str(f"{self.tokens / max(now - self._start, 1e-9):.0f} tokens/s", refresh=False)
            self._bar.update(count)
        elif now - self._line_at >= LINE_EVERY_S:
            self._line_at = now
            print(self.line(), file=sys.stderr, flush=True)
        if now - self._status_at >= STATUS_EVERY_S:
            self._status_at = now
            self._write_status("running")

    def line(self) -> str:
        """One readable line: done of total, rate, time left."""
        elapsed = max(time.monotonic() - self._start, 1e-9)
        rate = self.done / elapsed
        text = f"{self.stage}: {self.done:,}{f' of {self.total:,}' if self.total else ''} {self.unit}, {rate:,.1f} {self.unit}/s"
        if self.tokens:
            text += f", {self.tokens / elapsed:,.0f} tokens/s"
        if self.total and rate > 0 and self.done < self.total:
            text += f", about {(self.total - self.done) / rate:,.0f} s left"
        return text

    def _write_status(self, state: str) -> None:
        if self.status is None:
            return
        data = {
            "stage": self.stage, "state": state, "done": self.done, "total": self.total, "unit": self.unit,
            "tokens": self.tokens, "elapsed_s": round(time.monotonic() - self._start, 3), "pid": os.getpid(), "time": time.time(),
        }  # fmt: skip
        self.status.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.status.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_text(json.dumps(data), encoding="utf-8")
        os.replace(temporary, self.status)
