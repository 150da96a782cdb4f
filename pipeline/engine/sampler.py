"""Logits to token ids: greedy, or drawn with noise that is a pure function of the request. No rows' company counts.

Order: constraint mask, penalties, temperature, top_k, top_p, min_p, draw. Log probabilities are natural logs under
the model's own distribution (temperature 1, no penalties, no filters), so they mean the same in every setting.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline.engine.request import Sampling
from pipeline.model.logit_summary import BLOCK, COLDEST, LogitSummary, summarise

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
    model = summarise(logits)
    tokens, chosen, totals = list(model.ids), list(model.best), [model.logsumexp(row) for row in range(len(draws))]
    asked = [row for row, draw in enumerate(draws) if math.isfinite(totals[row]) and not _is_plain_greedy(draw)]
    if asked:
        rows = logits[asked].cpu()
        drawn = draw_tokens(rows, [draws[row] for row in asked])
        for row, token, logit in zip(asked, drawn, rows[range(len(drawn)), drawn].tolist()):
            tokens[row], chosen[row] = token, logit
    return [
        Choice(tokens[row], chosen[row] - total, _top(logits[row], model.peaks[row], total, draw.sampling.logprobs))
        if math.isfinite(total) else Choice(None)
        for row, (draw, total) in enumerate(zip(draws, totals))
    ]  # fmt: skip


def draw_tokens(logits: Tensor, draws: Sequence[Draw]) -> list[int]:
    """One token for each row of logits [M, V] on CPU, finite or -inf: penalties, constraint, temperature, filters, draw."""
    scores = logits
    if any(_changes_scores(draw) for draw in draws):
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32), copy=True)
        for row, draw in zip(scores.numpy(), draws):
            penalise(row, draw)
            if draw.allowed is not None:
                row[~draw.allowed] = -np.inf
    found = summarise(scores, [draw.sampling.temperature or 1.0 for draw in draws])
    with np.errstate(under="ignore", over="ignore"):
        return [
            _draw(scores[row], found, row, draw) if draw.sampling.temperature else found.ids[row] for row, draw in enumerate(draws)
        ]  # fmt: skip


def penalise(scores: NDArray[np.floating[Any]], draw: Draw) -> None:
    """In place: repetition_penalty over prompt and answer (Keskar et al., 2019); presence and frequency over the answer."""
    sampling = draw.sampling
    if sampling.repetition_penalty != 1:
        seen = np.array(list({*draw.prompt, *draw.answer}), np.int64)
        at = scores[seen]
        scores[seen] = np.where(at > 0, at / sampling.repetition_penalty, at * sampling.repetition_penalty)
    if draw.answer and (sampling.presence_penalty or sampling.frequency_penalty):
        counts = Counter(draw.answer)
        times = np.array(list(counts.values()))
        scores[np.array(list(counts), np.int64)] -= sampling.presence_penalty + sampling.frequency_penalty * times


def _draw(scores: Tensor, found: LogitSummary, row: int, draw: Draw) -> int:
    """Inverse transform: candidates in order of id, one uniform number. Without filters only one block is looked into."""
    sampling, best = draw.sampling, found.best[row]
    temperature = max(sampling.temperature, COLDEST)
    if sampling.top_k == 0 and sampling.top_p >= 1 and sampling.min_p <= 0:
        block, rest = _place(found.masses[row], uniform(draw))
        ids = np.arange(block * BLOCK, min((block + 1) * BLOCK, len(scores)))
        weights = np.exp((_at(scores, ids) - best) / temperature)
        return int(ids[_place(weights, rest)[0]])
    ids, weights = candidates(scores, found, row, sampling)
    return int(ids[_place(weights, uniform(draw))[0]])


def _place(weights: Floats, share: float) -> tuple[int, float]:
    """The index at which the running sum passes `share` of the whole, and the share of that weight that is passed."""
    mass = np.cumsum(weights)
    wanted = share * mass[-1]
    index = int(min(np.searchsorted(mass, wanted, side="right"), np.searchsorted(mass, mass[-1], side="left")))  # never past the last
    return index, float(min(max((wanted - mass[index] + weights[index]) / weights[index], 0.0), 1.0))


def candidates(scores: Tensor, found: LogitSummary, row: int, sampling: Sampling) -> tuple[NDArray[np.int64], Floats]:
    """Ids that top_k, then top_p, then min_p leave, rising, and their weights. The likeliest always stays.

    Equal values are ordered by id. top_p: the smallest set whose probability reaches it (Holtzman et al., 2020).
    """
    peaks, best, temperature, vocab = found.peaks[row], found.best[row], max(sampling.temperature, COLDEST), len(scores)

    def from_value(lowest: float) -> tuple[NDArray[np.int64], Floats]:
        ids, values = _above(scores, peaks, lowest)
        return ids, np.exp((values - best) / temperature)

    total, lightest = float(found.masses[row].sum()), min(sampling.min_p, 1.0)
    if 0 < sampling.top_k < vocab:
        ids, weights = from_value(_reached_by(peaks, sampling.top_k))
        limit = np.partition(weights, len(weights) - sampling.top_k)[len(weights) - sampling.top_k]
        ids, weights = _largest(ids, weights, limit, sampling.top_k)
        total = float(weights.sum())
    elif sampling.top_p < 1:  # few ids where they suffice; what lies below the last value weighs less than 1 - top_p of it all
        rest = best + temperature * math.log((1 - sampling.top_p) * total / vocab)
        for lowest in (_reached_by(peaks, 32), _reached_by(peaks, 256), rest):
            ids, weights = from_value(max(lowest, rest))
            if weights.sum() >= sampling.top_p * total:
                break
    else:
        ids, weights = from_value(best + temperature * math.log(lightest) if lightest > 0 else -math.inf)
    if sampling.top_p < 1:
        falling = np.sort(weights)[::-1]
        count = min(int(np.searchsorted(np.cumsum(falling), sampling.top_p * total, side="left")) + 1, len(falling))
        ids, weights = _largest(ids, weights, falling[count - 1], count)
    kept = weights >= lightest
    return ids[kept], weights[kept]


def _reached_by(peaks: Floats, count: int) -> float:
    """A value that at least `count` tokens reach, close to the largest such: one token of each block reaches its peak."""
    return float(np.partition(peaks, len(peaks) - count)[len(peaks) - count]) if count <= len(peaks) else -math.inf


def _above(scores: Tensor, peaks: Floats, lowest: float) -> tuple[NDArray[np.int64], Floats]:
    """Ids with at least that value, rising, and their values; looks only into blocks that have one."""
    blocks = np.flatnonzero(peaks >= lowest)
    ids = (blocks[:, None] * BLOCK + np.arange(BLOCK)).ravel()
    ids = ids[: np.searchsorted(ids, len(scores))]
    values = _at(scores, ids)
    kept = values >= lowest
    return ids[kept], values[kept]


def _at(scores: Tensor, ids: NDArray[np.int64]) -> Floats:
    return scores[torch.from_numpy(ids).to(scores.device)].double().cpu().numpy()


def _largest(ids: NDArray[np.int64], weights: Floats, limit: float, count: int) -> tuple[NDArray[np.int64], Floats]:
    """The `count` heaviest, the first of equal ones; `limit` is the weight of the last of them."""
    kept = weights > limit
    kept[np.flatnonzero(weights == limit)[: count - int(kept.sum())]] = True
    return ids[kept], weights[kept]


def _changes_scores(draw: Draw) -> bool:
    s = draw.sampling
    return draw.allowed is not None or s.repetition_penalty != 1 or s.presence_penalty != 0 or s.frequency_penalty != 0


def _is_plain_greedy(draw: Draw) -> bool:
    return draw.sampling.temperature == 0 and not _changes_scores(draw)


def _top(logits: Tensor, peaks: Floats, total: float, count: int) -> tuple[tuple[int, float], ...]:
    """The `count` likeliest tokens with their logprobs, equal ones by id."""
    if count == 0:
        return ()
    ids, values = _above(logits, peaks, _reached_by(peaks, count))
    order = np.argsort(-values, kind="stable")[:count]
    return tuple((int(ids[i]), float(values[i] - total)) for i in order if np.isfinite(values[i]))
