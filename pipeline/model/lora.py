"""Merging a LoRA adapter (Hu et al., 2021, arXiv 2106.09685) into its base: W + scale * B A, one matrix at a time.

R rank  I inputs  O outputs
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipeline.core.errors import ModelError
from pipeline.core.hashing import sha256_file
from pipeline.core.progress import Progress
from pipeline.model.config import read_config, read_json
from pipeline.model.importers import copy_folder, write_weights
from pipeline.model.safetensors_file import Shards
from pipeline.model.weights import checked_plan, read_tensor

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
Pairs = dict[str, tuple[str, str]]
NAME = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")


def merge_adapter(base: Path, adapter: Path, out: Path) -> dict[str, Any]:
    """Write `base` with the adapter merged into folder `out`; types stay as the base has them.

    Raises ModelError on an adapter that is not plain LoRA, or that names matrices the base has not.
    """
    scale, rank = _scale(adapter)
    if read_config(base).stored_bits:
        raise ModelError(f"{base}: the weights are quantised; merge the adapter into the float checkpoint and quantise the result")
    copy_folder(base, out, weights=False)
    with Shards(base) as shards, Shards(adapter) as low_rank, Progress("merge", total=shards.bytes >> 20, unit="MiB") as progress:
        checked_plan(read_config(base), shards)
        pairs = _pairs(low_rank, adapter, shards)
        write_weights(_merged(shards, low_rank, pairs, scale, progress), out)
    return {"base": base.name, "adapter": adapter.name, "adapter_sha256": sha256_file(adapter / WEIGHTS), "rank": rank, "scale": scale}


def _scale(adapter: Path) -> tuple[float, int]:
    """Factor on B A, and the rank. Refuses what is more than plain LoRA by its key."""
    config = read_json(adapter / CONFIG)
    if config.get("peft_type") != "LORA":
        raise ModelError(f"{adapter}: peft_type {config.get('peft_type')!r} is not read; only LORA can be merged")
    for key in ("use_dora", "fan_in_fan_out", "modules_to_save", "rank_pattern", "alpha_pattern", "lora_bias"):
        if config.get(key):
            raise ModelError(f"{adapter / CONFIG}: {key} is set, which is not supported; merge the adapter where it was trained")
    if config.get("bias", "none") != "none":
        raise ModelError(f"{adapter / CONFIG}: bias {config['bias']!r} is not supported; merge the adapter where it was trained")
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if not isinstance(rank, int) or rank < 1 or not isinstance(alpha, int | float):
        raise ModelError(f"{adapter / CONFIG}: needs r and lora_alpha, found {rank!r} and {alpha!r}")
    return alpha / (rank**0.5 if config.get("use_rslora") else rank), rank


def _pairs(low_rank: Shards, adapter: Path, base: Shards) -> Pairs:
    """Name of the base's matrix: names of its A [R, I] and B [O, R]."""
    found: dict[str, dict[str, str]] = {}
    for name in low_rank.where:
        match = NAME.fullmatch(name)
        if not match:
            raise ModelError(f"{adapter / WEIGHTS}: tensor {name} is not the A or B of a LoRA matrix")
        found.setdefault(match[1] + ".weight", {})[match[2]] = name
    for target, pair in found.items():
        if target not in base.where or len(pair) != 2:
            raise ModelError(f"{adapter}: {target} has {' and '.join(sorted(pair))}, and is {'' if target in base.where else 'not '}in the "
                             f"base {base.folder.name}; is it the right base?")  # fmt: skip
        a, b, shape = low_rank.entry(pair["A"]).shape, low_rank.entry(pair["B"]).shape, base.entry(target).shape
        if (b[0], a[1]) != shape or b[1] != a[0]:
            raise ModelError(f"{adapter}: {target} is {list(shape)} in the base, but A is {list(a)} and B is {list(b)}; wrong base?")
    return {target: (pair["A"], pair["B"]) for target, pair in found.items()}


def _merged(
    base: Shards, low_rank: Shards, pairs: dict[str, tuple[str, str]], scale: float, progress: Progress
) -> Iterator[tuple[str, Tensor]]:
    read = 0
    for name in base.where:
        weight = read_tensor(base, name)
        if name in pairs:
            a, b = (read_tensor(low_rank, part).to(torch.float32) for part in pairs[name])
            weight = (weight.to(torch.float32) + scale * (b @ a)).to(weight.dtype)
        yield name, weight
        read += weight.nbytes
        progress.update((read >> 20) - progress.done)
