"""Which kernels compute a decoder on this machine, chosen once at load, and the name of the choice.

Bits depend on kernels, so the name (`numerics`) is part of every answer's key: answers made by another plan, processor
kind or torch version are never mixed with these.
"""

from __future__ import annotations

import platform
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import torch

from pipeline.model.kv_cache import CacheShape, PagedAttention
from pipeline.model.linear import Linear
from pipeline.model.quantize import QuantizedLinear
from pipeline.model.tiled_attention import KINDS, TiledAttention
from pipeline.model.varlen_attention import make_varlen

VERSION = 3  # raised when any kernel or the order of its sums changes


def make_attention(shape: CacheShape, dtype: torch.dtype, device: torch.device) -> PagedAttention | TiledAttention:
    """The compiled kernels on CPU, FlashAttention on CUDA, plain PyTorch for other devices and for float64."""
    if device.type == "cpu" and dtype in KINDS:
        return TiledAttention(shape, dtype)
    return make_varlen(shape, dtype, device)


def pack_linears(decoder: Any) -> tuple[str, ...]:
    """Pack every plain linear layer of a CPU decoder; returns the kernels used, sorted."""
    device: torch.device = decoder.device
    if not isinstance(decoder, torch.nn.Module) or device.type != "cpu" or decoder.dtype not in KINDS:
        return ("plain",)
    linears = [module for module in decoder.modules() if isinstance(module, Linear | QuantizedLinear)]
    owners = Counter(id(parameter) for module in decoder.modules() for parameter in module.parameters(recurse=False))
    for linear in linears:
        linear.pack()
        if owners[id(linear.weight)] <= 1:  # a tied head shares its weight with the embedding
            linear.drop_weight()
    return tuple(sorted({linear.kernel for linear in linears}))


def numerics(attention: str, linears: tuple[str, ...], device: torch.device) -> str:
    """The name of the kernel plan, with the processor kind and the torch version it was chosen for."""
    where = processor() if device.type == "cpu" else torch.cuda.get_device_name(device)
    return f"plan {VERSION}; {attention}; {' '.join(linears)}; torch {torch.__version__}; {where}"


@cache
def processor() -> str:
    """Kind of CPU: what its kernels are chosen by, not its name, speed or number of cores."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").is_file() else []
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in reversed(lines))}
    flags = {"avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8", "avx512_fp16"}
    have = sorted(flags & set(facts.get("flags", "").split()))
    family = "-".join(facts.get(key, "?") for key in ("vendor_id", "cpu family", "model"))
    return f"{platform.machine()} {family} {' '.join(have)} {torch.backends.cpu.get_cpu_capability()}"
