"""reports/runs/TIME/: run.json and rows.parquet of one run, and a line in reports/runs/history.jsonl. Numbers and ids only.

Joins what the stages left in .work/telemetry with the counts of their manifests. Clocks and hosts are welcome here,
outside of every stage's outs.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.core import telemetry
from pipeline.core.errors import outcome
from pipeline.core.manifest import read_json_or_empty, read_table, write_bytes, write_json
from pipeline.core.paths import Paths
from pipeline.evaluation.gate import is_open
from pipeline.runners import prometheus
from pipeline.runners.machine import Machine

FORMAT = "pipeline-run/1"
STAGE_KEYS = ("started", "wall_s", "cpu_s", "peak_rss_bytes", "exit_code", "error")
SLOWEST_ROWS = 10
KEPT_ROW_FILES = 30  # nights whose rows.parquet stays; run.json and the history line stay for good
PERCENTILES = (50, 95, 99)


@contextmanager
def recorded(paths: Paths, command: str) -> Iterator[None]:
    """Leave a record of what happens in the block, however it ends."""
    started, code = time.time(), 0
    telemetry.clear(paths.work)
    try:
        yield
    except BaseException as error:
        code, _ = outcome(error)
        raise
    finally:
        with suppress(OSError):  # a full disk is told by what ran, not by its record
            write_run(paths, command=command, started=started, exit_code=code)


def write_run(paths: Paths, *, command: str, started: float, exit_code: int, failure: dict[str, Any] | None = None) -> Path:
    """Write the record of the run that has just ended, append it to the history, renew the .prom file. Returns its folder.

    failure: of a run that did not come to its end the stage, its error and what to do. What earlier runs left is not counted then.
    """
    ran = telemetry.collected(paths.work)
    rows = with_prompts(telemetry.collected_rows(paths.work), paths)
    record = {
        "format": FORMAT, "command": command, "exit_code": exit_code, "verdict": verdict(paths, exit_code),
        "started": _clock(started), "finished": _clock(time.time()), "wall_s": round(time.time() - started, 3),
        "failure": failure, "unchanged": exit_code in (0, 1) and not set(ran) - {"model"},
        "stages": {stage: {key: data.get(key) for key in STAGE_KEYS} for stage, data in ran.items()},
        "phases_s": phases(ran), "counts": counts(ran), "rows": row_counts(paths, ended(ran) if failure else None), "rates": rates(ran),
        "latency": latency(rows), "timeline": {stage: data["timeline"] for stage, data in ran.items() if data.get("timeline")},
        "slowest_rows": slowest(rows, paths), "peak_rss_bytes": max((data.get("peak_rss_bytes") or 0 for data in ran.values()), default=0),
        "host": host(), "git": git_state(paths.root),
    }  # fmt: skip
    folder = _new_folder(paths.runs, started)
    if rows.num_rows:
        pq.write_table(_with_ids(rows, paths), folder / "rows.parquet", compression="zstd")
    write_json(folder / "run.json", record)
    means: dict[str, dict[str, float | None]] = {"metrics": {}, "control": {}} if failure else headline_metrics(paths)
    append_history(paths, folder.name, record, means)
    write_bytes(paths.runs / "pipeline.prom", prometheus.text(record, means).encode())
    for old in sorted(paths.runs.glob("*/rows.parquet"))[:-KEPT_ROW_FILES]:
        old.unlink()
    return folder


def verdict(paths: Paths, exit_code: int) -> str:
    """`green` or `red` as the gate said, `failed` when the run did not come that far."""
    if exit_code not in (0, 1):
        return "failed"
    return str(read_json_or_empty(paths.gate_json).get("verdict", "none"))


def append_history(paths: Paths, run: str, record: dict[str, Any], means: dict[str, dict[str, float | None]]) -> None:
    """One line per run: what trends are drawn from."""
    keep = ("command", "started", "wall_s", "exit_code", "verdict", "unchanged", "rows", "rates", "counts", "peak_rss_bytes")
    line = {"run": run, **{key: record[key] for key in keep}, **means, "commit": record["git"]["commit"],
            "open": is_open(read_json_or_empty(paths.gate_json))}  # fmt: skip
    with open(paths.runs / "history.jsonl", "ab", buffering=0) as handle:
        handle.write((json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n").encode())


def read_history(paths: Paths) -> list[dict[str, Any]]:
    """All runs in order; a line torn by a crash is left out."""
    lines: list[dict[str, Any]] = []
    try:
        text = (paths.runs / "history.jsonl").read_text(encoding="utf-8")
    except FileNotFoundError:
        return lines
    for line in text.splitlines():
        try:
            item = json.loads(line)
        except ValueError:
            continue
        if isinstance(item, dict):
            lines.append(item)
    return lines


def last_whole(history: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The last run that made or kept what data/results holds."""
    return next((line for line in reversed(history) if not line.get("unchanged") and line.get("exit_code") in (0, 1)), None)


def minute(line: dict[str, Any]) -> str:
    """When a run of the history started, to the minute."""
    return str(line.get("started", "")).replace("T", " ")[:16]


def headline_metrics(paths: Paths) -> dict[str, dict[str, float | None]]:
    """Means by metric, of the night's rows and of the control set."""
    metrics = read_json_or_empty(paths.metrics_json)
    return {part: {name: value.get("mean") for name, value in (metrics.get(part) or {}).items()} for part in ("metrics", "control")}


def phases(ran: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Seconds by phase; the part of a stage that no phase covers is named after the stage."""
    found: dict[str, float] = {}
    for stage, data in ran.items():
        named = data.get("phases") or {}
        for name, seconds in named.items():
            found[name] = found.get(name, 0.0) + seconds
        rest = (data.get("wall_s") or 0.0) - sum(named.values())
        if rest > 0:
            found[stage] = found.get(stage, 0.0) + rest
    return {name: round(seconds, 4) for name, seconds in found.items()}


def counts(ran: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Counts of all stages; names are unique by convention, so they are added up."""
    found: dict[str, float] = {}
    for data in ran.values():
        for name, value in (data.get("counts") or {}).items():
            found[name] = max(found.get(name, 0), value) if name.endswith("_max") else found.get(name, 0) + value
    return found


def ended(ran: dict[str, dict[str, Any]]) -> set[str]:
    """Stages that ended well."""
    return {stage for stage, data in ran.items() if data.get("exit_code") == 0}


def row_counts(paths: Paths, only: set[str] | None = None) -> dict[str, dict[str, int]]:
    """Rows in, out, rejected and failed of each stage that has a manifest; `only` of these stages."""
    folders = [(stage, folder) for stage, folder in paths.stage_folders.items() if only is None or stage in only]
    return {stage: rows for stage, folder in folders if (rows := read_json_or_empty(folder / "manifest.json").get("rows"))}


def rates(ran: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Per second of the generate stage: answered rows, prompt tokens, generated tokens; and within prefill and decode alone."""
    data = ran.get("generate") or {}
    number, spent = data.get("counts") or {}, data.get("phases") or {}
    wall = data.get("wall_s") or 0.0
    pairs = {
        "rows_per_s": (number.get("generated_rows"), wall),
        "completion_tokens_per_s": (number.get("completion_tokens"), wall),
        "prefill_tokens_per_s": (number.get("prefill_tokens"), spent.get("prefill")),
        "decode_tokens_per_s": (number.get("decode_tokens"), spent.get("decode")),
    }
    return {name: round(amount / seconds, 3) for name, (amount, seconds) in pairs.items() if amount and seconds}


def with_prompts(rows: pa.Table, paths: Paths) -> pa.Table:
    """Fill in prompt lengths and buckets from the prompts table."""
    if not rows.num_rows or not (paths.prompts / "manifest.json").is_file():
        return rows
    held = read_table(paths.prompts, columns=["ordinal", "prompt_tokens", "bucket"])
    place = pc.index_in(rows["ordinal"], held["ordinal"])
    for name in ("prompt_tokens", "bucket"):
        rows = rows.set_column(rows.schema.get_field_index(name), rows.schema.field(name), held[name].take(place))
    return rows


def latency(rows: pa.Table) -> dict[str, dict[str, dict[str, float]]]:
    """P50, P95 and P99 of time to first token, time per output token and whole time, for all generated rows and by bucket."""
    made = rows.filter(pc.and_(pc.is_valid(rows["total_s"]), pc.invert(pc.fill_null(rows["reused"], False))))
    if not made.num_rows:
        return {}
    groups = {"all": made} | {
        str(edge): made.filter(pc.equal(made["bucket"], edge)) for edge in sorted(pc.unique(made["bucket"].drop_null()).to_pylist())
    }
    return {name: _percentiles(group) for name, group in groups.items() if group.num_rows}


def slowest(rows: pa.Table, paths: Paths) -> list[dict[str, Any]]:
    """The rows that took longest, with their ids."""
    made = rows.filter(pc.is_valid(rows["total_s"]))
    order = pc.sort_indices(made, [("total_s", "descending"), ("ordinal", "ascending")])[:SLOWEST_ROWS]
    found: list[dict[str, Any]] = _with_ids(made.take(order), paths).to_pylist()
    return found


def host() -> dict[str, Any]:
    """The machine this ran on."""
    from importlib import metadata

    return {
        "name": platform.node(), "system": f"{platform.system()} {platform.release()}", "python": platform.python_version(),
        "torch": metadata.version("torch"), "processor": _processor(), "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
    }  # fmt: skip


def git_state(root: Path) -> dict[str, Any]:
    """Commit and whether the tree differs from it; nulls without Git or without a commit."""
    git = partial(Machine().run, "git", "-C", str(root))
    commit, status = git("rev-parse", "HEAD"), git("status", "--porcelain")
    return {"commit": commit.strip() if commit else None, "dirty": bool(status.strip()) if status is not None else None}


def _percentiles(rows: pa.Table) -> dict[str, dict[str, float]]:
    total, first = rows["total_s"].to_numpy(), rows["first_token_s"].to_numpy()
    tokens = rows["completion_tokens"].to_numpy()
    several = tokens > 1
    values = {"first_token_s": first, "per_token_s": (total - first)[several] / (tokens[several] - 1), "total_s": total}
    found = {}
    for name, data in values.items():
        data = data[np.isfinite(data)]
        if len(data):
            found[name] = {f"p{p}": round(float(value), 5) for p, value in zip(PERCENTILES, np.percentile(data, PERCENTILES))}
    return found


def _with_ids(rows: pa.Table, paths: Paths) -> pa.Table:
    if not rows.num_rows or not (paths.validated / "manifest.json").is_file():
        return rows
    held = read_table(paths.validated, columns=["ordinal", "id"])
    place = pc.index_in(rows["ordinal"], held["ordinal"])
    return rows.add_column(1, "id", held["id"].take(place))


def _new_folder(runs: Path, started: float) -> Path:
    name = time.strftime("%Y-%m-%dT%H-%M-%S", time.localtime(started))
    for number in range(1, 1000):
        folder = runs / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise AssertionError(f"a thousand runs within one second: {name}")


def _clock(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor())
