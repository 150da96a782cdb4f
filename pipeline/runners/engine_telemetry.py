"""What the engine counted, in the words of telemetry."""

from __future__ import annotations

from typing import Any

from pipeline.core.telemetry import Meter
from pipeline.engine.request import Completion

COUNTS = ("steps", "prefill_tokens", "decode_tokens", "reused_tokens", "padding_tokens", "preemptions", "back_offs", "failed_rows")


def note_completion(meter: Meter, completion: Completion) -> None:
    """A row of the run's rows.parquet: lengths and times, no text."""
    meter.row(
        ordinal=completion.id, sample=completion.sample, completion_tokens=len(completion.token_ids), reused=False,
        first_token_s=completion.first_token_s, total_s=completion.total_s, finish_reason=completion.finish_reason,
    )  # fmt: skip


def note_engine(meter: Meter, stats: dict[str, Any]) -> None:
    """Phases, counts and the timeline of an engine's EngineStats."""
    for phase, key in (("prefill", "prefill_s"), ("decode", "decode_s"), ("schedule", "host_s")):
        meter.add_time(phase, stats[key])
    for name in COUNTS:
        meter.add(name, stats[name])
    meter.add("kv_pages_max", stats["peak_pages"])
    meter.add("running_rows_max", stats["max_running_rows"])
    meter.add("kv_slots_filled_share_max", round(stats["page_fill"], 4))
    meter.add("device_memory_bytes_max", _device_memory())
    meter.timeline += [{"t_s": at, "running_rows": running, "waiting_rows": waiting} for at, running, waiting in stats["series"]]


def note_outcome(meter: Meter, generated_rows: int, generated_tokens: int, reused_rows: int) -> None:
    """What was generated tonight and what the store answered."""
    meter.add("generated_rows", generated_rows)
    meter.add("completion_tokens", generated_tokens)
    meter.add("reused_rows", reused_rows)


def _device_memory() -> int:
    import torch

    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
