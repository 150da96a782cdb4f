"""Rotary position embedding (Su et al., 2021, arXiv 2104.09864) and the ways its frequencies are stretched.

N tokens  H heads  D head dim  R rotated values of a head
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from pipeline.model.config import RotaryConfig
from pipeline.model.row_kernels import turn


class Rotary(nn.Module):
    """Frequencies of one kind, fixed at load: `dynamic` and `longrope` follow the longest sequence of the run and not the one at
    hand, so that a cached key never depends on how long its sequence becomes."""

    frequencies: Tensor

    def __init__(self, config: RotaryConfig) -> None:
        super().__init__()
        with torch.device("cpu"):
            frequencies, self.scale = inverse_frequencies(config)
        self.register_buffer("frequencies", frequencies, persistent=False)

    def tables(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and sines [N, 1, R] in dtype, computed in float32 (float64 for float64)."""
        wide = torch.promote_types(dtype, torch.float32)
        angles = positions[:, None].to(wide) * self.frequencies.to(wide)
        angles = torch.cat((angles, angles), dim=-1)[:, None]
        return (angles.cos() * self.scale).to(dtype), (angles.sin() * self.scale).to(dtype)


def rotate(x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
    """Turn the first R values of each head; x [N, H, D], which may be written over. The halves are paired: value i with i + R/2."""
    cos, sin = tables
    if turn(x, cos, sin):
        return x
    turned, rest = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
    first, second = turned.chunk(2, dim=-1)
    out = turned * cos + torch.cat((-second, first), dim=-1) * sin
    return out if not rest.shape[-1] else torch.cat((out, rest), dim=-1)


def inverse_frequencies(config: RotaryConfig) -> tuple[Tensor, float]:
    """Frequencies [R/2] float32 in radians per token, and the factor on cosines and sines."""
    plain: Tensor = 1.0 / config.theta ** _exponents(config)
    match config.kind:
        case "default":
            return plain, 1.0
        case "linear":  # position interpolation, Chen et al., 2023, arXiv 2306.15595
            return plain / config.factor, 1.0
        case "dynamic":
            return _dynamic(config), 1.0
        case "llama3":
            return _llama3(config, plain), 1.0
        case "yarn":
            return _yarn(config)
        case "longrope":
            return _longrope(config)
    raise ValueError(f"rotary kind {config.kind}")


def _exponents(config: RotaryConfig) -> Tensor:
    return torch.arange(0, config.dim, 2, dtype=torch.int64).float() / config.dim


def _dynamic(config: RotaryConfig) -> Tensor:
    """NTK-aware scaling of the base for sequences up to config.length."""
    stretch = config.factor * config.length / config.original_length - (config.factor - 1)
    base = config.theta * stretch ** (config.dim / (config.dim - 2))
    frequencies: Tensor = 1.0 / base ** _exponents(config)
    return frequencies


def _llama3(config: RotaryConfig, plain: Tensor) -> Tensor:
    """Long wavelengths are divided by the factor, short ones kept, those between interpolated (Llama 3.1 release)."""
    wavelength = 2 * math.pi / plain
    scaled = torch.where(wavelength > config.original_length / config.low_freq_factor, plain / config.factor, plain)
    smooth = (config.original_length / wavelength - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor)
    between = (1 - smooth) * scaled / config.factor + smooth * scaled
    long, short = config.original_length / config.low_freq_factor, config.original_length / config.high_freq_factor
    return torch.where((wavelength >= short) & (wavelength <= long), between, scaled)


def _yarn(config: RotaryConfig) -> tuple[Tensor, float]:
    """YaRN, Peng et al., 2023, arXiv 2309.00071."""

    def turning_dim(turns: float) -> float:
        return config.dim * math.log(config.original_length / (turns * 2 * math.pi)) / (2 * math.log(config.theta))

    def magnitude(weight: float) -> float:
        return 0.1 * weight * math.log(config.factor) + 1.0 if config.factor > 1 else 1.0

    low, high = turning_dim(config.beta_fast), turning_dim(config.beta_slow)
    if config.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, config.dim - 1)
    if low == high:
        high += 0.001
    keep = 1 - ((torch.arange(config.dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    base = config.theta ** _exponents(config)
    frequencies = 1.0 / (config.factor * base) * (1 - keep) + 1.0 / base * keep
    scale = config.attention_factor
    if scale is None and config.mscale and config.mscale_all_dim:
        scale = magnitude(config.mscale) / magnitude(config.mscale_all_dim)
    return frequencies, magnitude(1.0) if scale is None else scale


def _longrope(config: RotaryConfig) -> tuple[Tensor, float]:
    """LongRoPE, Ding et al., 2024, arXiv 2402.13753."""
    frequencies = 1.0 / (torch.tensor(config.factors, dtype=torch.float32) * config.theta ** _exponents(config))
    if config.attention_factor is not None:
        return frequencies, config.attention_factor
    return frequencies, 1.0 if config.factor <= 1 else math.sqrt(1 + math.log(config.factor) / math.log(config.original_length))
