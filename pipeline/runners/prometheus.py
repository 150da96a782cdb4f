"""The last run as Prometheus text format, for the textfile collector of node_exporter. Numbers only; labels are our own words.

Names by its conventions: prefix, base unit in the name, gauges throughout since a file holds the last run.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

PREFIX = "nightly_inference"
Sample = tuple[dict[str, str], float]


def text(record: dict[str, Any], headline: dict[str, dict[str, float | None]]) -> str:
    """record: run.json as data; headline: {"metrics": {name: mean}, "control": {name: mean}}."""
    lines: list[str] = []
    for name, words, samples in _families(record, headline):
        held = [(labels, value) for labels, value in samples if value is not None]
        if held:
            lines += [f"# HELP {PREFIX}_{name} {words}", f"# TYPE {PREFIX}_{name} gauge"]
            lines += [f"{PREFIX}_{name}{_labels(labels)} {_number(value)}" for labels, value in held]
    return "\n".join(lines) + "\n"


def _families(record: dict[str, Any], headline: dict[str, dict[str, float | None]]) -> Iterable[tuple[str, str, list[Any]]]:
    yield "last_run_timestamp_seconds", "When the last run ended.", [({}, datetime.fromisoformat(record["finished"]).timestamp())]
    yield "last_run_exit_code", "Exit code of the last run: 0 good, 1 gate red.", [({}, record["exit_code"])]
    yield "last_run_duration_seconds", "How long the last run took.", [({}, record["wall_s"])]
    yield "last_run_peak_memory_bytes", "Largest resident memory of its stages.", [({}, record["peak_rss_bytes"])]
    stages = [({"stage": stage}, data.get("wall_s")) for stage, data in record["stages"].items()]
    yield "stage_duration_seconds", "How long each stage took that ran.", stages
    yield "phase_duration_seconds", "Time by phase.", [({"phase": name}, value) for name, value in record["phases_s"].items()]
    rows = [({"stage": stage, "kind": kind}, value) for stage, kinds in record["rows"].items() for kind, value in kinds.items()]
    yield "rows", "Rows into and out of each stage.", rows
    yield "tally", "Counts of the run, as named in run.json.", [({"name": name}, value) for name, value in record["counts"].items()]
    yield "throughput_per_second", "Rates of the generate stage.", [({"of": name}, value) for name, value in record["rates"].items()]
    for quantity in ("first_token_s", "per_token_s", "total_s"):
        samples = [
            ({"bucket": bucket, "percentile": p[1:]}, value)
            for bucket, held in record["latency"].items()
            for p, value in held.get(quantity, {}).items()
        ]
        yield f"latency_{quantity.removesuffix('_s')}_seconds", "Latency of generated rows by length bucket.", samples
    for part, words in (("metrics", "the run's rows"), ("control", "the control set")):
        samples = [({"metric": name}, value) for name, value in headline[part].items()]
        yield f"{'score' if part == 'metrics' else 'control_score'}", f"Mean score of {words}.", samples


def _labels(labels: dict[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}" if labels else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))
