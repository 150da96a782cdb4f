"""The accepted scores of the control set: a small file for Git that only `pipeline accept` writes.

Rows are paired by id, sample and a digest of what was asked and expected, so that an edited control row is not compared.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.core.errors import DataError
from pipeline.core.manifest import read_batches, read_json, read_manifest
from pipeline.core.paths import Paths

FORMAT = "pipeline-baseline/1"

DIGITS = 6  # of scores, on both sides of every comparison: what a file rounds must never look like a change

Key = tuple[str, int, str]  # id, sample, digest of the row


@dataclass
class ControlScores:
    """Scores of control rows: keys in order of arrival, values {metric: float64 [rows], NaN where not valid}."""

    keys: list[Key]
    values: dict[str, np.ndarray]
    fields: list[dict[str, Any]] = field(default_factory=list)  # what slices are made of; empty in a baseline

    def index(self) -> dict[Key, int]:
        return {key: place for place, key in enumerate(self.keys)}


@dataclass
class Baseline:
    """What was accepted. signatures tell whether a metric is still counted the same way."""

    control: ControlScores
    profile: dict[str, Any]
    signatures: dict[str, str]
    why: str | None = None


def control_scores(paths: Paths) -> ControlScores:
    """Scores of this run's control rows, answered ones only."""
    rows = control_rows(paths)
    known = pa.array(sorted(rows), pa.int64())
    places: dict[tuple[int, int], int] = {}
    values: dict[str, dict[int, float]] = {}
    for table in read_batches(paths.scores, "rows", ["ordinal", "sample", "metric", "value"]):
        for line in table.filter(pc.is_in(table["ordinal"], known)).to_pylist():
            place = places.setdefault((line["ordinal"], line["sample"]), len(places))
            column = values.setdefault(line["metric"], {})
            if line["value"] is not None:
                column[place] = line["value"]
    return ControlScores(
        keys=[(rows[ordinal]["id"], sample, rows[ordinal]["digest"]) for ordinal, sample in places],
        values={metric: _column(found, len(places)) for metric, found in values.items()},
        fields=[rows[ordinal] for ordinal, _ in places],
    )


def control_rows(paths: Paths) -> dict[int, dict[str, Any]]:
    """{ordinal: {id, digest, meta, language, steps_applied, bucket}} of the control rows."""
    rows: dict[int, dict[str, Any]] = {}
    for table in read_batches(paths.validated, "rows", ["ordinal", "id", "control", "text", "messages", "reference", "meta"]):
        for row in table.filter(table["control"]).to_pylist():
            asked = json.dumps([row["text"], row["messages"], row["reference"]], ensure_ascii=False)
            rows[row["ordinal"]] = {"id": row["id"], "digest": hashlib.sha256(asked.encode()).hexdigest()[:16], "meta": row["meta"]}
    known = pa.array(sorted(rows), pa.int64())
    for folder, columns in ((paths.clean, ["ordinal", "language", "steps_applied"]), (paths.prompts, ["ordinal", "bucket"])):
        for table in read_batches(folder, "rows", columns):
            for row in table.filter(pc.is_in(table["ordinal"], known)).to_pylist():
                rows[row["ordinal"]].update(row)
    return rows


def as_json(paths: Paths, why: str | None) -> dict[str, Any]:
    """This run as a baseline: plain data, the same for the same run."""
    found = control_scores(paths)
    manifest = read_manifest(paths.scores)
    return {
        "format": FORMAT,
        "why": why,
        "ids": [key[0] for key in found.keys],
        "samples": [key[1] for key in found.keys],
        "digests": [key[2] for key in found.keys],
        "scores": {metric: [_plain(value) for value in column] for metric, column in sorted(found.values.items())},
        "profile": read_json(paths.scores / "profile.json", made_by="evaluate"),
        "signatures": manifest["signatures"],
    }


def read_baseline(paths: Paths) -> Baseline | None:
    """The accepted baseline; None where none was accepted yet (no file, or the empty object that stands for it in Git)."""
    file = paths.baseline_json
    if not file.is_file():
        return None
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{file}: {error}; restore it from Git, or accept a run again with `pipeline accept`") from None
    if not data:
        return None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise DataError(f"{file}: is no {FORMAT}; restore it from Git, or accept a run again with `pipeline accept`")
    keys = list(zip(data["ids"], data["samples"], data["digests"], strict=True))
    values = {metric: np.array([np.nan if v is None else v for v in column], float) for metric, column in data["scores"].items()}
    return Baseline(ControlScores(keys, values), data["profile"], data["signatures"], data.get("why"))


def _column(found: dict[int, float], rows: int) -> np.ndarray:
    column = np.full(rows, np.nan)
    column[list(found)] = list(found.values())
    return np.round(column, DIGITS)


def _plain(value: float) -> float | None:
    return None if np.isnan(value) else round(float(value), DIGITS)
