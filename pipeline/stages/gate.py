"""Is the night good? Control set against the accepted baseline, limits, drift, mixed runs. Writes the verdict, always exits 0."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from pipeline.core.hashing import sha256_file
from pipeline.core.manifest import changed_since, describe_file, describe_upstream, read_json, read_manifest, stage_manifest, write_json
from pipeline.core.params import GateParams, Params
from pipeline.core.paths import Paths
from pipeline.evaluation import gate
from pipeline.evaluation.baseline import Baseline, ControlScores, control_rows, control_scores, read_baseline
from pipeline.evaluation.extract import as_key
from pipeline.evaluation.gate import Finding, Pair
from pipeline.evaluation.metrics import METRICS
from pipeline.evaluation.profile import drift
from pipeline.evaluation.slices import slice_values


def run(params: Params, paths: Paths) -> dict[str, Any]:
    """Write reports/gate.json: verdict green or red, reasons (red ones), notes, checks with numbers, drift."""
    limits = params.gate
    inputs = _inputs(paths)
    metrics = read_json(paths.metrics_json, made_by="evaluate")
    profile = read_json(paths.scores / "profile.json", made_by="evaluate")
    scores = read_manifest(paths.scores)
    control = control_scores(paths)
    baseline = read_baseline(paths)
    moved = drift(profile["night"], baseline.profile["night"]) if baseline else {}
    findings = [
        *sound(paths),
        *diverged_canaries(paths),
        *gate.nothing_valid(_asked(scores["params"]["evaluate"]), metrics),
        *gate.nothing_answered(metrics["rows"]["night"]),
        *gate.rejected_files(read_manifest(paths.validated).get("files", [])),
        *gate.limits(limits, metrics, lambda field, value: _slice_means(control, field, value)),
        *gate.shares(limits, metrics["rows"]["night"]),
        *gate.drifts(limits, moved),
        *(against_baseline(limits, control, baseline, scores["signatures"], paths) if baseline else _no_baseline(limits)),
    ]
    mixed = changed_since(inputs, paths.root)
    findings += [Finding("mixed", True, "mixed", {"path": path, "stage": "gate"}) for path in mixed]
    red = [finding.message for finding in findings if finding.red]
    manifest = stage_manifest(
        "gate", inputs=inputs, outputs=[], rows=None, params={"gate": limits}, mixed=mixed,
        verdict="red" if red else "green",
        reasons=red,
        notes=[finding.message for finding in findings if not finding.red],
        checks=[finding.as_dict() for finding in findings],
        drift=moved,
        baseline=_describe(baseline, paths),
    )  # fmt: skip
    write_json(paths.gate_json, manifest)
    return manifest


def sound(paths: Paths) -> list[Finding]:
    """Red for stages whose inputs changed while they ran, for stages made from another version of an earlier one, for damaged files."""
    found = []
    for folder in (paths.validated, paths.clean, paths.prompts, paths.completions, paths.scores):
        manifest = read_manifest(folder)
        stage = manifest["stage"]
        found += [Finding("mixed", True, "mixed", {"path": path, "stage": stage}) for path in manifest["changed_during_run"]]
        upstream = [item for item in manifest["inputs"] if item["path"].endswith("/manifest.json")]
        for path in changed_since(upstream, paths.root):
            found.append(Finding("mixed", True, "stale", {"path": path, "stage": stage}))
        damaged = [paths.relative(folder / path) for path in changed_since(manifest["outputs"], folder)]
        damaged += changed_since([manifest["metrics_json"]] if "metrics_json" in manifest else [], paths.root)
        found += [Finding("verify", True, "verify", {"path": path}) for path in damaged]
    return found


def diverged_canaries(paths: Paths) -> list[Finding]:
    """Rows that gave another answer alone than in the batch: a note, since the answers are still answers."""
    return [
        Finding("canary", False, "canary", {"row": item["ordinal"], "token": item["first_divergence"]})
        for item in read_manifest(paths.completions).get("canaries", [])
        if not item["equal"]
    ]


def against_baseline(
    limits: GateParams, control: ControlScores, baseline: Baseline, signatures: dict[str, str], paths: Paths
) -> list[Finding]:  # fmt: skip
    """Row by row: every metric with a better side, whole and in the slices that gate.max_drop names."""
    findings, before, now = _paired_rows(control, baseline, paths)
    keys = [gate.parse_key(text, "gate.max_drop") for text in limits.max_drop]
    allowed = {key.metric: limits.max_drop[key.text] for key in keys if not key.field}
    named = {key.metric for key in keys}
    pairs = []
    for metric, values in control.values.items():
        old = baseline.control.values.get(metric)
        if old is None or not METRICS[metric].better:
            continue
        if baseline.signatures.get(metric) != signatures.get(metric):
            findings.append(Finding("signature", metric in named, "signature", {"name": metric}, metric))
            continue
        pairs.append(Pair(metric, None, old[before], values[now], allowed.get(metric, 0.0)))
        for key in (key for key in keys if key.field and key.metric == metric):
            inside = np.array([_is_in(control.fields[place], key.field, key.value) for place in now], dtype=bool)
            pairs.append(Pair(metric, key.slice, old[before][inside], values[now][inside], limits.max_drop[key.text]))
    tested = gate.drops(pairs, limits)
    findings += [item for item in tested if item.red or item.value or (item.metric in named)]
    for key in keys:
        if not any(item.metric == key.metric and item.slice == key.slice and item.rows for item in tested):
            findings.append(Finding("drop", True, "drop_no_valid", {"name": key.text}, key.metric, key.slice, rows=0))
    return findings


def _paired_rows(control: ControlScores, baseline: Baseline, paths: Paths) -> tuple[list[Finding], list[int], list[int]]:
    """(findings, places in the baseline, places tonight) of the rows that both have."""
    places = control.index()
    both = [(old, places[key]) for old, key in enumerate(baseline.control.keys) if key in places]
    asked = {(row["id"], row["digest"]) for row in control_rows(paths).values()}
    answered = {(key[0], key[2]) for key in control.keys}
    accepted = {(key[0], key[2]) for key in baseline.control.keys}
    silent, gone = len((accepted & asked) - answered), len(accepted - asked)
    findings = []
    if accepted and not both:
        findings.append(Finding("control", True, "control_none"))
    elif silent:
        red = silent > gate.UNANSWERED_SHARE * len(accepted)
        findings.append(Finding("control", red, "control_silent", {"lost": silent, "rows": len(accepted)}, rows=silent))
    if gone and both:
        findings.append(Finding("control", False, "control_gone", {"lost": gone}, rows=gone))
    return findings, [old for old, _ in both], [new for _, new in both]


def _slice_means(control: ControlScores, field: str, value: str) -> dict[str, dict[str, Any]]:
    inside = np.array([_is_in(row, field, value) for row in control.fields], dtype=bool)
    found: dict[str, dict[str, Any]] = {}
    for metric, values in control.values.items():
        valid = values[inside] if len(inside) else values
        valid = valid[~np.isnan(valid)]
        found[metric] = {"mean": float(valid.mean()) if len(valid) else None, "n_valid": len(valid)}
    return found


def _is_in(row: dict[str, Any], field: str | None, value: str | None) -> bool:
    return as_key(value) in slice_values(field or "", {"finish_reason": None, **row}, json.loads(row["meta"] or "{}"))


def _asked(evaluate: dict[str, Any]) -> list[str]:
    """Metrics that the user named in evaluate.metrics."""
    return [] if evaluate["metrics"] == "auto" else [item if isinstance(item, str) else next(iter(item)) for item in evaluate["metrics"]]


def _no_baseline(limits: GateParams) -> list[Finding]:
    for text in limits.max_drop:
        gate.parse_key(text, "gate.max_drop")
    return [Finding("baseline", False, "baseline")]


def _describe(baseline: Baseline | None, paths: Paths) -> dict[str, Any] | None:
    """Which baseline was used. No input of the manifest: accepting this run replaces it and harms no chain."""
    if baseline is None:
        return None
    return {"sha256": sha256_file(paths.baseline_json), "rows": len(baseline.control.keys), "why": baseline.why}


def _inputs(paths: Paths) -> list[dict[str, Any]]:
    folders = (paths.validated, paths.clean, paths.prompts, paths.completions, paths.scores)
    described = [describe_upstream(folder, paths.root) for folder in folders]
    return [*described, describe_file(paths.metrics_json, paths.relative(paths.metrics_json))]
