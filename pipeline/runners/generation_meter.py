"""What stage generate leaves for telemetry: phases, counts, a timeline, a line per generated row. Never row text, never in an out."""

from __future__ import annotations

from typing import Any

from pipeline.core.telemetry import Meter
from pipeline.engine.request import Completion
from pipeline.runners.generation import Outcome

COUNTS = (
    "steps", "prefill_tokens", "decode_tokens", "reused_tokens", "padding_tokens", "preemptions", "back_offs", "failed_rows",
)  # fmt: skip
MAX_ROWS = 200_000  # rows described one by one; beyond, only the counts go on


class GenerationMeter:
    """Fills a Meter while answers come, and with the engine's own figures at the end."""

    def __init__(self) -> None:
        self.meter = Meter()
        self._rows = 0

    def row(self, request_tokens: int, bucket: int | None, completion: Completion) -> None:
        """One generated answer."""
        if self._rows >= MAX_ROWS:
            return
        self._rows += 1
        self.meter.row(
            ordinal=completion.id, sample=completion.sample, bucket=bucket, prompt_tokens=request_tokens,
            completion_tokens=len(completion.token_ids), reused=False, first_token_s=completion.first_token_s,
            total_s=completion.total_s, finish_reason=completion.finish_reason,
        )  # fmt: skip

    def finish(self, outcome: Outcome, stats: dict[str, Any]) -> Meter:
        """outcome: of generate_missing. stats: Engine.stats() after it."""
        for name in COUNTS:
            self.meter.add(name, stats[name])
        self.meter.add("peak_pages_max", stats["peak_pages"])
        self.meter.add("running_rows_max", stats["max_running_rows"])
        for name in ("generated_rows", "reused_rows"):
            self.meter.add(name, getattr(outcome, name))
        self.meter.add("completion_tokens", outcome.generated_tokens)
        for phase in ("prefill", "decode", "host"):
            self.meter.add_time({"host": "schedule"}.get(phase, phase), stats[f"{phase}_s"])
        self.meter.timeline += [{"t_s": t, "running_rows": running, "waiting_rows": waiting} for t, running, waiting in stats["series"]]
        return self.meter
