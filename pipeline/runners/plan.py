"""What a night will cost, from the real prompts' lengths: rows, tokens, padding, memory, what the store has, time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.core.manifest import read_batches, read_json, read_manifest, read_table
from pipeline.core.params import Params
from pipeline.core.paths import Paths
from pipeline.engine.request import Sampling
from pipeline.model.config import read_config
from pipeline.runners.build import Answerer, build
from pipeline.runners.calibration import Calibration, calibrate
from pipeline.runners.completion_store import CompletionStore
from pipeline.runners.lines import Lines, missing_lines, plan_lines
from pipeline.runners.machine import Machine
from pipeline.runners.settings import Settings

BATCH_ROWS = 32  # of the static batches that padding waste is told for
COLUMNS = ["ordinal", "position", "token_ids", "overrides"]
Lengths = NDArray[np.int64]


@dataclass(frozen=True)
class Forecast:
    """All figures of a plan as plain data, in the order they are told."""

    rows: dict[str, int]
    tokens: dict[str, float]
    padding: dict[str, float]
    memory: dict[str, int]
    store: dict[str, int]
    time: dict[str, float]
    never_fit: list[str]


def forecast(paths: Paths, params: Params, *, project: Paths, budget_s: float = 5.0) -> Forecast:
    """Figures for the prompts below `paths` (stages model to bucket have run there). project: where the store lies."""
    table = read_table(paths.prompts, columns=["ordinal", "prompt_tokens", "bucket"])
    lengths, edges = (table[name].to_numpy().astype(np.int64) for name in ("prompt_tokens", "bucket"))
    answerer = build(params.model, params.generate, paths, max_batch_tokens=params.bucket.max_batch_tokens)
    settings = Settings(params.generate, answerer.identity, assets=project.assets, max_model_len=answerer.max_model_len)
    lines = plan_lines(read_batches(paths.prompts, columns=COLUMNS), settings)
    todo = todo_lines(lines, project, params)
    wanted = set(todo["ordinal"].to_pylist())
    prompts = [ids for ordinal, ids in _prompts(paths) if ordinal in wanted]
    measured = calibrate(answerer.engine, prompts, settings_sampling(params), budget_s) if prompts else None
    return Forecast(
        rows=row_figures(paths, lines, todo.num_rows), tokens=token_figures(lengths, params, measured), padding=padding(lengths, edges),
        memory=memory_figures(paths, answerer, params, lengths),
        store=store_figures(lines, todo.num_rows),
        time=time_figures(measured, prompts, todo.num_rows), never_fit=never_fit(paths),
    )  # fmt: skip


def settings_sampling(params: Params) -> Sampling:
    """The run's own sampling, as the engine takes it."""
    return Sampling(**{name: getattr(params.generate, name) for name in Sampling.__dataclass_fields__})


def todo_lines(lines: Lines, project: Paths, params: Params) -> Any:
    """Lines whose answers the store does not have."""
    store = CompletionStore(project.store(params.generate.store))
    known = store.has(lines.keys) if params.generate.reuse == "any" else np.zeros(lines.table.num_rows, bool)
    return missing_lines(lines, known)


def row_figures(paths: Paths, lines: Lines, todo: int) -> dict[str, int]:
    """Rows read, rejected by stage, to be answered."""
    stages = {"validate": paths.validated, "preprocess": paths.clean, "bucket": paths.prompts}
    rejected = {f"rejected by {stage}": int(read_manifest(folder)["rows"]["rejected"]) for stage, folder in stages.items()}
    return {
        "read": int(read_manifest(paths.validated)["rows"]["into"]),
        **rejected,
        "to answer": int(read_manifest(paths.prompts)["rows"]["out"]),
    }


def store_figures(lines: Lines, todo: int) -> dict[str, int]:
    """Answers wanted, those the store has (or that equal prompts share), those to be generated."""
    return {"answers wanted": lines.table.num_rows, "in the store": lines.table.num_rows - todo - len(lines.refused), "to generate": todo}


def token_figures(lengths: Lengths, params: Params, measured: Calibration | None) -> dict[str, float]:
    """Prompt tokens and their spread; answers at most, and as the calibration says."""
    if not len(lengths):
        return {"prompt tokens": 0}
    spread = {f"P{p}": round(float(np.percentile(lengths, p)), 1) for p in (50, 90, 99)}
    answers = len(lengths) * params.generate.samples
    expected = {"answer tokens expected": round(answers * measured.completion_tokens)} if measured else {}
    return {"prompt tokens": int(lengths.sum()), "mean": round(float(lengths.mean()), 1), **spread, "longest": int(lengths.max()),
            "answer tokens at most": answers * params.generate.max_new_tokens, **expected}  # fmt: skip


def padding(lengths: Lengths, edges: Lengths) -> dict[str, float]:
    """Share of padding in static batches of 32: rows as they come, sorted, and padded to their bucket's edge. The engine pads nothing."""
    if not len(lengths):
        return {}
    return {"as they come": waste(lengths), "sorted": waste(np.sort(lengths)), "by bucket": float(1 - lengths.sum() / edges.sum())}


def waste(lengths: Lengths, batch_rows: int = BATCH_ROWS) -> float:
    """Padding / all tokens when every batch is padded to its longest row."""
    padded = sum(int(chunk.max()) * len(chunk) for chunk in batches(lengths, batch_rows))
    return float(1 - lengths.sum() / padded)


def batches(lengths: Lengths, batch_rows: int) -> Iterator[Lengths]:
    for start in range(0, len(lengths), batch_rows):
        yield lengths[start : start + batch_rows]


def memory_figures(paths: Paths, answerer: Answerer, params: Params, lengths: Lengths) -> dict[str, int]:
    """Bytes: weights exactly and by the rule parameters x bytes x 1.2, KV cache per row, longest rows that fit at once."""
    config = read_config(answerer.folder)
    about = read_json(paths.model_json, made_by="model")
    width = {"none": 4 if answerer.identity.dtype == "float32" else 2, "int8": 1, "int4": 0.5}[params.model.quantization]
    weights = int(about["parameters"] * width)
    widest = int(lengths.max(initial=0)) + params.generate.max_new_tokens
    per_row = -(-widest // params.generate.page_size) * params.generate.page_size * config.kv_bytes_per_token
    free = Machine().memory_available()
    return {
        "weights": weights,
        "weights by the rule": int(weights * 1.2),
        "kv per token": config.kv_bytes_per_token,
        "kv of the longest row": per_row,
        "memory available": free,
        "longest rows that fit at once": max(int((free * 0.8 - weights) // per_row), 0),
    }


def time_figures(measured: Calibration | None, prompts: list[Any], rows: int) -> dict[str, float]:
    """Expected seconds and rates of the generate stage."""
    if measured is None:
        return {"generate_s": 0.0}
    seconds = measured.seconds_for(sum(map(len, prompts)), rows)
    return {
        "generate_s": round(seconds, 3),
        "rows_per_s": round(rows / seconds, 2),
        "answer_tokens_per_s": round(rows * measured.completion_tokens / seconds),
        "prefill_tokens_per_s": round(measured.prefill_tokens_per_s),
        "decode_tokens_per_s": round(measured.decode_tokens_per_s),
        "calibration_rows": measured.rows,
        "calibration_s": round(measured.seconds, 1),
    }


def never_fit(paths: Paths, most: int = 20) -> list[str]:
    """Ids of rows whose prompt is longer than the model takes."""
    rejected = read_table(paths.prompts, "rejected")
    long = rejected.filter(pc.match_substring(rejected["reason"], "long"))
    return [str(name) for name in long["id"].to_pylist()[:most]]


def _prompts(paths: Paths) -> Iterator[tuple[int, list[int]]]:
    for batch in read_batches(paths.prompts, columns=["ordinal", "token_ids"]):
        yield from zip(batch["ordinal"].to_pylist(), batch["token_ids"].to_pylist())
