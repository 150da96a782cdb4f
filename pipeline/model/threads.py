"""Run a compiled function on all of torch's own OpenMP threads.

A second pool beside torch's would fight it for the cores: its idle threads spin. So compiled kernels are started through
the very OpenMP runtime that torch has loaded. Where that cannot be found, they run on the calling thread alone.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import torch

SMALL = 500_000  # operations: about 20 microseconds


@cache
def _start_parallel() -> Any:
    """GOMP_parallel of the runtime torch uses (LLVM's and Intel's export it too), None where there is none."""
    torch.zeros(1).add_(1)
    maps = Path("/proc/self/maps")
    lines = maps.read_text(encoding="utf-8").splitlines() if maps.is_file() else []
    names = sorted({line.split()[-1] for line in lines if "omp" in line.split()[-1].rsplit("/", 1)[-1]})
    near_torch = str(Path(torch.__file__).parent.parent)
    for name in sorted(names, key=lambda name: not name.startswith(near_torch)):
        start = getattr(ctypes.CDLL(name), "GOMP_parallel", None)
        if start is not None:
            start.argtypes, start.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint], None
            return start
    return None


def thread_count() -> int:
    """Threads that `run_parallel` uses."""
    return torch.get_num_threads() if _start_parallel() else 1


def run_parallel(function: int, argument: int, operations: float) -> None:
    """Call the C function void f(void *argument) once on every thread at once; returns when all have.

    function, argument: addresses. operations: size of the work; small work stays on the calling thread, as waking the
    others takes 3 microseconds on an idle machine and milliseconds on a busy one. The GIL is free meanwhile.
    """
    start = _start_parallel()
    if start and operations > SMALL:
        start(function, argument, torch.get_num_threads(), 0)
    else:
        _call(function)(argument)


@cache
def _call(function: int) -> Any:
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function)
