"""Writes reports/runs as the run record does: a line per night, run.json of the last one. Numbers from a seed."""

from __future__ import annotations

import json
import random
from typing import Any

from pipeline.core.manifest import write_json
from pipeline.core.paths import Paths


def rows(into: int, rejected: int = 0, failed: int = 0) -> dict[str, int]:
    return {"into": into, "out": into - rejected - failed, "rejected": rejected, "failed": failed}


def line(n: int, chance: random.Random, shift_at: int | None) -> dict[str, Any]:
    shift = -0.2 if shift_at is not None and n >= shift_at else 0.0
    values = {
        "exact": 0.61 + shift + chance.gauss(0, 0.006),
        "chrf": 48 + 40 * shift + chance.gauss(0, 0.4),
        "refusal": 0.02,
        "numeric": None,
    }
    return {
        "run": f"2026-10-{n + 1:02d}T02-00-00", "command": "night", "started": f"2026-10-{n + 1:02d}T02:00:00+08:00",
        "wall_s": 300 + chance.gauss(0, 8), "exit_code": 1 if shift else 0, "verdict": "red" if shift else "green", "unchanged": False,
        "rows": {"validate": rows(304, rejected=4), "generate": rows(300, failed=1)},
        "rates": {"completion_tokens_per_s": 900 + chance.gauss(0, 12)}, "counts": {}, "peak_rss_bytes": 2**31,
        "metrics": {name: None if value is None else value * 0.9 for name, value in values.items()}, "control": values,
        "commit": "0123456789abcdef",
    }  # fmt: skip


def write(paths: Paths, nights: int, shift_at: int | None = None, seed: int = 3) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    lines = [line(n, chance, shift_at) for n in range(nights)]
    paths.runs.mkdir(parents=True, exist_ok=True)
    (paths.runs / "history.jsonl").write_text("".join(json.dumps(item) + "\n" for item in lines), encoding="utf-8")
    last = lines[-1]
    timeline = [
        {"t_s": float(t), "running_rows": min(64, 300 - t), "waiting_rows": max(0, 236 - t), "used_pages": 2 * min(64, 300 - t)}
        for t in range(0, 300, 5)
    ]
    latency = {"first_token_s": {"p50": 1.2, "p95": 9.1, "p99": 12.0}, "per_token_s": {"p50": 0.02, "p95": 0.03, "p99": 0.031},
               "total_s": {"p50": 4.0, "p95": 14.2, "p99": 16.0}}  # fmt: skip
    write_json(paths.runs / last["run"] / "run.json", {
        **last, "format": "pipeline-run/1", "finished": last["started"], "git": {"commit": last["commit"], "dirty": True},
        "stages": {"validate": {"wall_s": 1.1}, "generate": {"wall_s": 280.0}, "evaluate": {"wall_s": 9.0}},
        "phases_s": {"prefill": 70.0, "decode": 190.0, "sample": 12.0, "write": 2.0},
        "latency": {"all": latency, "64": latency, "256": latency},
        "timeline": {"generate": timeline},
        "slowest_rows": [{"ordinal": 7, "id": "r<7>", "prompt_tokens": 50, "completion_tokens": 128, "total_s": 16.1}],
        "counts": {"prompt_tokens": 12000, "completion_tokens": 31000, "padding_tokens": 900, "reused_rows": 2},
        "host": {"processor": "Some CPU", "cores": 2, "system": "Linux 6", "python": "3.12.1", "torch": "2.13.0"},
    })  # fmt: skip
    return lines
