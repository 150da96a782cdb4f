"""Logits to token ids: greedy, or drawn with noise that is a pure function of the request. No rows' company counts.

Order: constraint mask, penalties, temperature, top_k, top_p, min_p, draw. Log probabilities are natural logs under
the model's own distribution (temperature 1, no penalties, no filters), so they mean the same in every setting.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline.engine.request import Sampling

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Choice:
    """One drawn token. `token_id` is None when the logits of the row were not finite."""

    token_id: int | None
    logprob: float = float("nan")
    top_logprobs: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Draw:
    """What decides one row's next token, besides its logits."""

    sampling: Sampling
    prompt_digest: bytes
    sample: int
    position: int  # of the token to be drawn, counted in the answer from 0
    prompt: Sequence[int] = ()
    answer: Sequence[int] = ()
    allowed: Any = None  # bool [V] of a constraint


def prompt_digest(token_ids: Sequence[int]) -> bytes:
    """sha256 of a prompt's token ids."""
    return hashlib.sha256(np.asarray(token_ids, np.int64).tobytes()).digest()


def uniform(draw: Draw) -> float:
    """Noise in [0, 1): a hash of (seed, digest of the prompt's token ids, sample, position)."""
    text = f"{draw.sampling.seed}/{draw.sample}/{draw.position}/".encode() + draw.prompt_digest
    return (int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 11) / 2.0**53


def choose(logits: Tensor, draws: Sequence[Draw], usable_vocab: int) -> list[Choice]:
    """logits [M or more, V], row i for draws[i]; ids from usable_vocab on are never drawn."""
    logits = logits[: len(draws), :usable_vocab]
    best = logits.max(dim=-1)  # on CPU three times as fast as argmax
    first = _lowest_id(logits, best.values, best.indices)
    total = torch.logsumexp(logits.double() if logits.dtype == torch.float64 else logits.float(), dim=-1)
    finite = torch.isfinite(total).tolist()
    greedy_ids, greedy_logits, totals = first.tolist(), best.values.tolist(), total.tolist()
    out = []
    for row, draw in enumerate(draws):
        if not finite[row]:
            out.append(Choice(None))
            continue
        if _is_plain_greedy(draw):
            token, logit = greedy_ids[row], greedy_logits[row]
        else:
            values = logits[row].double().cpu().numpy()
            token = draw_token(values, draw)
            logit = float(values[token])
        out.append(Choice(token, logit - totals[row], _top(logits[row], totals[row], draw.sampling.logprobs)))
    return out


def draw_token(logits: Floats, draw: Draw) -> int:
    """One token from one row's logits [V] by inverse transform: candidates in order of id, one uniform number."""
    scores = penalised(logits, draw)
    if draw.allowed is not None:
        scores = np.where(draw.allowed, scores, -np.inf)
    if draw.sampling.temperature == 0:
        return int(np.argmax(scores))
    with np.errstate(under="ignore", over="ignore"):
        scaled = (scores - scores.max()) / draw.sampling.temperature
        weights = np.exp(keep_candidates(scaled, draw.sampling))
        mass = np.cumsum(weights)
    place = np.searchsorted(mass, uniform(draw) * mass[-1], side="right")
    return int(min(place, np.searchsorted(mass, mass[-1], side="left")))  # never past the last candidate


def penalised(logits: Floats, draw: Draw) -> Floats:
    """repetition_penalty over prompt and answer (Keskar et al., 2019); presence and frequency over the answer."""
    sampling = draw.sampling
    if sampling.repetition_penalty == 1 and sampling.presence_penalty == 0 and sampling.frequency_penalty == 0:
        return logits
    scores = logits.copy()
    if sampling.repetition_penalty != 1:
        seen = np.array(sorted({*draw.prompt, *draw.answer}), np.int64)
        at = scores[seen]
        scores[seen] = np.where(at > 0, at / sampling.repetition_penalty, at * sampling.repetition_penalty)
    if draw.answer:
        counts = Counter(draw.answer)
        ids = np.array(sorted(counts), np.int64)
        times = np.array([counts[i] for i in ids.tolist()])
        scores[ids] -= sampling.presence_penalty + sampling.frequency_penalty * times
    return scores


def keep_candidates(scaled: Floats, sampling: Sampling) -> Floats:
    """Scaled logits with maximum 0; those outside top_k, top_p, min_p become -inf. The likeliest always stays.

    Equal values are ordered by id. top_p: the smallest set whose probability reaches it (Holtzman et al., 2020).
    """
    if sampling.min_p > 0:
        scaled = np.where(scaled >= np.log(sampling.min_p), scaled, -np.inf)
    count = min(sampling.top_k, len(scaled)) if sampling.top_k else len(scaled)
    if count == len(scaled) and sampling.top_p >= 1:
        return scaled
    ids = _nucleus(scaled, count, sampling.top_p) if sampling.top_p < 1 else largest(scaled, count)
    kept = np.full_like(scaled, -np.inf)
    kept[ids] = scaled[ids]
    return kept


def largest(values: Floats, count: int) -> NDArray[np.int64]:
    """Ids of the `count` largest values, largest first, equal ones by id; sorts no more than it must."""
    if count >= len(values):
        return np.argsort(-values, kind="stable")
    limit = np.partition(values, len(values) - count)[len(values) - count]
    ids = np.flatnonzero(values >= limit)
    return ids[np.argsort(-values[ids], kind="stable")[:count]]


def _nucleus(scaled: Floats, count: int, top_p: float) -> NDArray[np.int64]:
    """The fewest of the `count` likeliest ids whose probability among these reaches top_p."""
    total = np.exp(scaled if count == len(scaled) else scaled[largest(scaled, count)]).sum()
    for tried in (min(count, 256), min(count, 4096), count):
        ids = largest(scaled, tried)
        mass = np.cumsum(np.exp(scaled[ids]))
        if mass[-1] >= top_p * total:
            break
    return ids[: int(np.searchsorted(mass, top_p * total, side="left")) + 1]


def _is_plain_greedy(draw: Draw) -> bool:
    s = draw.sampling
    return (s.temperature == 0 and draw.allowed is None and s.repetition_penalty == 1
            and s.presence_penalty == 0 and s.frequency_penalty == 0)  # fmt: skip


def _lowest_id(logits: Tensor, values: Tensor, indices: Tensor) -> Tensor:
    """`max` returns any of equal values; the lowest id is the rule."""
    tied = (logits == values[:, None]).sum(dim=-1) > 1
    if bool(tied.any()):
        indices = indices.clone()
        indices[tied] = (logits[tied] == values[tied, None]).int().argmax(dim=-1)
    return indices


def _top(logits: Tensor, total: float, count: int) -> tuple[tuple[int, float], ...]:
    """The `count` likeliest tokens with their logprobs, equal ones by id."""
    if count == 0:
        return ()
    values = logits.double().cpu().numpy()
    ids = largest(values, count)
    return tuple((int(i), float(values[i] - total)) for i in ids if np.isfinite(values[i]))
