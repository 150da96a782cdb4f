"""Stage report: what went wrong in the night, where and why, as a table, a page and a mail."""

from __future__ import annotations

from typing import Any

from pipeline.core import schemas
from pipeline.core.manifest import RowCount, StageOutput, changed_since, describe_file, describe_upstream, read_json_or_empty, write_bytes
from pipeline.core.params import Params
from pipeline.core.paths import Paths
from pipeline.report import bad_cases, html, markdown
from pipeline.report.labels import labels_file
from pipeline.report.rows import Row, answered, extracted, rejected
from pipeline.report.tokens import load_token_texts


def run(params: Params, paths: Paths) -> dict[str, Any]:
    """Judge every row, write data/bad_cases, reports/bad_cases.html and .md. Works without prompts, model and gate."""
    inputs = _inputs(paths)
    night = bad_cases.find(paths, params.report)
    shown = {(case.ordinal, case.sample) for case in html.chosen(night, params.report)}
    rows = _rows(paths, shown)
    metrics, gate = read_json_or_empty(paths.metrics_json), read_json_or_empty(paths.gate_json) or None
    with StageOutput(paths.bad_cases, "report") as out:
        out.open("rows", schemas.BAD_CASES)
        out.write("rows", bad_cases.to_table(night.cases))
        write_bytes(paths.bad_cases_html, html.write(night, rows, params.report, metrics, gate, load_token_texts(paths)))
        write_bytes(paths.bad_cases_md, markdown.write(night, rows, params.report, metrics, gate))
        judged = night.answers + night.control_answers + night.rejected
        return out.finish(
            inputs=inputs, rows=RowCount(judged, judged), params={"report": params.report}, mixed=changed_since(inputs, paths.root),
            bad_cases={"cases": len(night.cases), "failing": night.bad, "warned": night.warned, "by_cause": dict(night.by_cause),
                       "by_rule": dict(night.by_rule), "patterns": len(night.mined.patterns), "groups": len(night.clusters)},
            pages=[describe_file(file, paths.relative(file)) for file in (paths.bad_cases_html, paths.bad_cases_md)],
        )  # fmt: skip


def _inputs(paths: Paths) -> list[dict[str, Any]]:
    """What is read: the tables that are there, the verdict, the scores, people's labels."""
    folders = [paths.validated, paths.clean, paths.prompts, paths.completions, paths.scores]
    needed = (paths.validated, paths.completions, paths.scores)
    described = [describe_upstream(folder, paths.root) for folder in folders if folder in needed or (folder / "manifest.json").is_file()]
    files = [paths.metrics_json, paths.gate_json, paths.model_json, labels_file(paths)]
    return described + [describe_file(file, paths.relative(file)) for file in files if file.is_file()]


def _rows(paths: Paths, wanted: set[tuple[int, int]]) -> dict[tuple[int, int], Row]:
    """The rows of the cases that are shown, with their texts."""
    found = {(row.ordinal, row.sample): row for row in answered(paths, sorted({ordinal for ordinal, _ in wanted}))}
    for key, text in extracted(paths, sorted({ordinal for ordinal, _ in wanted})).items():
        if key in found:
            found[key].extracted = text
    found |= {(row.ordinal, row.sample): row for row in rejected(paths)}
    return {key: row for key, row in found.items() if key in wanted}
