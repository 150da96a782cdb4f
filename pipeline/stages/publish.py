"""Stage publish: one line per input row and sample, rejected ones too, and the manifest of the whole chain."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.core import schemas
from pipeline.core.errors import VerificationFailed
from pipeline.core.hashing import sha256_json
from pipeline.core.manifest import RowCount, StageOutput, changed_since, describe_file, describe_upstream, read_json, read_manifest
from pipeline.core.params import EvaluateParams, Params
from pipeline.core.paths import Paths
from pipeline.evaluation.metrics import metric_columns
from pipeline.runners.openai_results import write_openai_results
from pipeline.tables.query import connect, create_views, sql_text

STATUSES = ("answered", "rejected", "failed")


def run(params: Params, paths: Paths) -> dict[str, Any]:
    """Join the tables of the chain; control rows stay out. Reads no params: the stages' manifests say what was used."""
    files = [file for file in (paths.model_json, paths.metrics_json, paths.gate_json) if file.is_file()]
    inputs = [describe_upstream(folder, paths.root) for folder in _folders(paths).values()]
    inputs += [describe_file(file, paths.relative(file)) for file in files]
    stages = {name: read_manifest(folder) for name, folder in _folders(paths).items()}
    schema = schemas.results_schema(metric_columns(_evaluate_params(stages["evaluate"])))
    counts = dict.fromkeys(STATUSES, 0)
    published, last = 0, -1
    with StageOutput(paths.results, "publish") as out:
        out.open("part", schema, parts=True)
        for table in _results(paths, schema):
            out.write("part", table)
            for value in table["status"].value_counts().to_pylist():
                counts[value["values"]] += value["counts"]
            ordinals = table["ordinal"].to_numpy()
            published, last = published + int((np.diff(ordinals, prepend=last) != 0).sum()), int(ordinals[-1])
        _check_count(published, stages["validate"])
        openai = write_openai_results(out.temporary / "openai", stages["validate"], paths)
        return out.finish(
            inputs=[*_raw_inputs(stages["validate"]), *inputs],
            rows=RowCount(sum(counts.values()), counts["answered"], counts["rejected"], counts["failed"]),
            params=_merged_params(stages),
            mixed=[*changed_since(inputs, paths.root), *_mixed(stages)],
            openai=openai,
            **_provenance(stages, paths),
        )


def _check_count(published: int, validated: dict[str, Any]) -> None:
    """Every input row is in the results. Raises VerificationFailed: the tables of the chain belong to different runs."""
    if published != (wanted := validated["statistics"]["rows"]):
        raise VerificationFailed(
            f"data/results: {published:,} input rows would be published, but validate read {wanted:,}; nothing was written: "
            "the tables belong to different runs, so run the whole chain again"
        )


def _folders(paths: Paths) -> dict[str, Path]:
    return {name: folder for name, folder in paths.stage_folders.items() if name != "publish"}


def _evaluate_params(scores: dict[str, Any]) -> EvaluateParams:
    return EvaluateParams.model_validate_json(json.dumps(scores["params"]["evaluate"]))


def _raw_inputs(validated: dict[str, Any]) -> list[dict[str, Any]]:
    return [{key: item[key] for key in ("path", "bytes", "sha256")} for item in validated["inputs"]]


def _mixed(stages: dict[str, dict[str, Any]]) -> list[str]:
    return sorted(f"{name}: {changed}" for name, manifest in stages.items() for changed in manifest["changed_during_run"])


def _merged_params(stages: dict[str, dict[str, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for manifest in stages.values():
        merged |= manifest["params"]
    return merged


def _provenance(stages: dict[str, dict[str, Any]], paths: Paths) -> dict[str, Any]:
    """What made these results, from data to verdict; the whole manifests of the stages are named by their sha256 in `inputs`."""
    model = read_json(paths.model_json, made_by="model") if paths.model_json.is_file() else None
    metrics = read_json(paths.metrics_json, made_by="evaluate")
    gate = read_json(paths.gate_json, made_by="gate")
    gave = ("rows", "outputs", "code", "packages", "mixed")
    return {
        "preprocessing": {"fingerprint": stages["preprocess"].get("fingerprint"), "rows": stages["preprocess"]["rows"]},
        "prompt": {key: stages["bucket"].get(key) for key in ("prompt_digest", "template_digest", "tokenizer_digest", "edges")},
        "model": model,
        "generation": {key: stages["generate"].get(key) for key in ("identity", "completion_tokens", "canaries")},
        "metrics": {"metrics": metrics["metrics"], "control": metrics["control"], "signatures": stages["evaluate"].get("signatures")},
        "gate": gate,
        "source_sha256": sha256_json({name: manifest["code"]["sha256"] for name, manifest in stages.items()}),
        "stages": {name: {key: manifest[key] for key in gave} for name, manifest in stages.items()},
    }


def _results(paths: Paths, schema: pa.Schema) -> Iterator[pa.Table]:
    """The results table in order of ordinal and sample, in batches; the sort spills to disk."""
    with connect(paths.work / "tmp") as con:
        create_views(con, paths)
        for batch in con.sql(_query(schema)).to_arrow_reader(4096):
            if batch.num_rows:
                yield pa.Table.from_batches([batch]).cast(schema)


def _query(schema: pa.Schema) -> str:
    head = set(schemas.RESULTS_HEAD.names) | {"meta"}
    metrics = [name for name in schema.names if name not in head]
    pivot = "".join(f", max(value) FILTER (metric = {sql_text(name)}) AS {_name(name)}" for name in metrics)
    columns = ", ".join(_name(name) for name in schema.names)
    return f"""
        WITH scored AS (SELECT ordinal, sample, max(extracted) AS extracted{pivot} FROM scores GROUP BY ordinal, sample),
        asked AS (
            SELECT v.ordinal, v.id, v.source_file, v.source_line, c.sample,
                CASE WHEN c.error IS NULL THEN 'answered' ELSE 'failed' END AS status, c.error AS reason,
                p.prompt, c.text AS completion, s.* EXCLUDE (ordinal, sample), c.finish_reason, p.prompt_tokens, c.completion_tokens,
                c.logprob_mean, c.logprob_min, v.reference, v.meta
            FROM completions c JOIN validated v USING (ordinal) JOIN prompts p USING (ordinal)
            LEFT JOIN scored s ON s.ordinal = c.ordinal AND s.sample = c.sample
            WHERE NOT v.control),
        refused AS (
            SELECT r.ordinal, coalesce(v.id, r.id) AS id, r.source_file, r.source_line, 0 AS sample, 'rejected' AS status,
                r.reason || ': ' || r.detail AS reason, v.reference, v.meta
            FROM rejected r LEFT JOIN validated v USING (ordinal) WHERE NOT r.control)
        SELECT {columns} FROM (SELECT * FROM asked UNION ALL BY NAME SELECT * FROM refused) ORDER BY ordinal, sample
    """


def _name(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'
