"""What the engine did and how fast, for telemetry and benchmarks. Nothing here ever reaches an answer."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from pipeline.engine.scheduler import Plan

SERIES_POINTS = 512  # the running/waiting series is thinned to at most twice as many points


@dataclass(slots=True)
class EngineStats:
    """Counts since the engine was made; seconds are wall seconds of steps."""

    steps: int = 0
    prefill_tokens: int = 0  # prompt tokens computed, recomputed ones too
    decode_tokens: int = 0  # tokens drawn
    reused_tokens: int = 0  # prompt tokens taken from other rows' pages
    padding_tokens: int = 0  # rows added to steps to reach a probed shape
    prefill_s: float = 0.0  # steps with prompt tokens are divided by their token counts
    decode_s: float = 0.0
    host_s: float = 0.0  # planning, bookkeeping and the caller's time between steps is not in it
    preemptions: int = 0
    back_offs: int = 0  # times memory ran out and fewer rows were run
    failed_rows: int = 0
    slots_filled: float = 0.0  # sum over steps of tokens / slots of held pages
    peak_pages: int = 0
    max_running_rows: int = 0
    series: list[tuple[float, int, int]] = field(default_factory=list)  # seconds, running rows, waiting rows
    _stride: int = 1

    def step(self, plan: Plan, padded: int, device_s: float, host_s: float) -> None:
        """Account one finished step."""
        drawn = sum(1 for chunk in plan.chunks if chunk.ends)
        prefill = plan.tokens - sum(1 for chunk in plan.chunks if chunk.count == 1 and chunk.ends)
        share = prefill / plan.tokens
        self.steps += 1
        self.prefill_tokens += prefill
        self.decode_tokens += drawn
        self.padding_tokens += padded - plan.tokens
        self.prefill_s += device_s * share
        self.decode_s += device_s * (1 - share)
        self.host_s += host_s

    def pages(self, tokens: int, held: int, page_size: int) -> None:
        """Account page use after a step: `tokens` live tokens on `held` pages."""
        self.slots_filled += tokens / (held * page_size) if held else 1.0
        self.peak_pages = max(self.peak_pages, held)

    def sample(self, at_s: float, running: int, waiting: int) -> None:
        """A point of the series, thinned evenly as it grows."""
        if self.steps % self._stride == 0:
            self.series.append((round(at_s, 3), running, waiting))
        if len(self.series) > 2 * SERIES_POINTS:
            self.series = self.series[::2]
            self._stride *= 2

    def as_dict(self) -> dict[str, Any]:
        """All counts with a few ratios."""
        out = {key: value for key, value in asdict(self).items() if not key.startswith("_")}
        steps = max(self.steps, 1)
        return out | {
            "page_fill": self.slots_filled / steps,
            "prefill_tokens_per_s": self.prefill_tokens / self.prefill_s if self.prefill_s else None,
            "decode_tokens_per_s": self.decode_tokens / self.decode_s if self.decode_s else None,
        }
