"""A profile of one stage: PyTorch's trace, and a page with the operators that took the time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.core.manifest import write_bytes
from pipeline.core.paths import Paths

TOP_OPERATORS = 25


@contextmanager
def profiled(paths: Paths) -> Iterator[Path]:
    """Profile the block; gives the folder reports/runs/profile with trace.json and summary.txt. No row text is recorded."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    folder = paths.runs / "profile"
    folder.mkdir(parents=True, exist_ok=True)
    wanted = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
    start = time.perf_counter()
    with profile(activities=wanted) as recorded:
        yield folder
    wall_s = time.perf_counter() - start
    averages = recorded.key_averages()
    busy_s = sum(item.self_cpu_time_total for item in averages) / 1e6
    idle = max(1 - busy_s / wall_s, 0.0)
    words = f"{wall_s:.2f} s, of which {busy_s:.2f} s in PyTorch's operators; everything else: {idle:.0%}\n\n"
    write_bytes(folder / "summary.txt", (words + averages.table(sort_by="self_cpu_time_total", row_limit=TOP_OPERATORS)).encode())
    recorded.export_chrome_trace(str(folder / "trace.json"))
