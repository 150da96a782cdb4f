"""Rows in, scores out: a batch of joined rows becomes one line of values per answer. Pure, so batches may run anywhere.

Work is spread over processes by batches of fixed size and comes back in order; the scores are the same for any number of
processes, and only a few batches are in memory at a time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.core.params import EvaluateParams
from pipeline.evaluation.answer import Answer
from pipeline.evaluation.extract import build_extractor, split_reasoning, wants_json
from pipeline.evaluation.jsontext import spelled_text
from pipeline.evaluation.metrics import choose, load_files
from pipeline.evaluation.translation import CORPUS
from pipeline.tables.workers import Workers, cores

BATCH_ROWS = 512
POOL_FROM_ROWS = 2000  # below, starting processes takes longer than the work


@dataclass(frozen=True)
class Scored:
    """values float64 [rows, metrics], NaN where a metric does not apply; extracted: the scored part of each answer or None.

    corpus: {metric: int64 [rows, counts]}, what is summed for scores of the whole corpus; zeros where the metric does not apply.
    """

    table: pa.Table
    values: np.ndarray
    extracted: list[str | None]
    corpus: dict[str, np.ndarray]


class Scorer:
    """Scores batches with the metrics and extractors of params. Raises ParamsError at birth when they are wrong."""

    def __init__(self, params: EvaluateParams, assets: Path) -> None:
        self.params = params
        self.metrics = load_files(choose(params), params, assets)
        self._extractor = build_extractor(params.extract)

    @property
    def names(self) -> list[str]:
        return [item.name for item in self.metrics]

    def score(self, table: pa.Table) -> Scored:
        """Score joined rows (see stages/evaluate); rows that failed get no value at all."""
        answers = [self.answer(row) for row in table.to_pylist()]
        values = np.full((len(answers), len(self.metrics)), np.nan)
        for row, answer in enumerate(answers):
            if answer is not None:
                scores = [metric.value(answer) for metric in self.metrics]
                values[row] = [np.nan if score is None else score for score in scores]
        extracted = [answer.extracted if answer else None for answer in answers]
        return Scored(table, values, extracted, self._corpus(answers, values))

    def _corpus(self, answers: list[Answer | None], values: np.ndarray) -> dict[str, np.ndarray]:
        found = {}
        for column, name in enumerate(self.names):
            if name in CORPUS:
                count, _ = CORPUS[name]
                valid = ~np.isnan(values[:, column])
                rows = [count(answer) if answer and good else [] for answer, good in zip(answers, valid, strict=True)]
                width = max(map(len, rows), default=0)
                found[name] = np.array([row or [0] * width for row in rows], dtype=np.int64).reshape(len(rows), width)
        return found

    def answer(self, row: dict[str, Any]) -> Answer | None:
        """One joined row as an Answer; None for a failed one."""
        if row["finish_reason"] == "error" or row["text"] is None:
            return None
        fields = json.loads(row["meta"] or "{}")
        _, text = split_reasoning(row["text"])
        is_json = wants_json(self.params.extract, fields)
        references = [text for text in json.loads(row["reference"] or "[]") if isinstance(text, str) and text.strip()]
        return Answer(
            text=text,
            extracted=self._extractor(fields)(text, row["finish_reason"]),
            references=[spelled_text(text) for text in references] if is_json else references,
            prompt=row["asked"] or "",
            language=row["language"] or "und",
            finish_reason=row["finish_reason"] or "stop",
            fields=fields,
            overrides=json.loads(row["overrides"] or "{}"),
            logprob_mean=row["logprob_mean"],
            logprob_min=row["logprob_min"],
            wants_json=is_json,
        )


def score_all(
    params: EvaluateParams, assets: Path, batches: Iterable[pa.Table], rows: int, processes: int | None = None
) -> Iterator[Scored]:  # fmt: skip
    """Scored batches in order. rows: how many are to come, which decides whether processes are worth starting."""
    processes = processes if processes is not None else min(16, cores())
    if processes < 2 or rows < POOL_FROM_ROWS:
        scorer = Scorer(params, assets)
        yield from map(scorer.score, batches)
        return
    with Workers(processes, fresh=True, prepare=partial(_start, params, assets)) as workers:
        yield from workers.map(_score, ((batch,) for batch in batches))


_scorer: Scorer | None = None


def _start(params: EvaluateParams, assets: Path) -> None:
    """Once per process: threads of numpy would only fight over the cores."""
    global _scorer
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    _scorer = Scorer(params, assets)


def _score(table: pa.Table) -> Scored:
    assert _scorer is not None
    return _scorer.score(table)
