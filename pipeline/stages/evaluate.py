"""Scores every answer, control rows too: extraction, metrics, slices with intervals. Failed answers are counted, not scored."""

from __future__ import annotations

import csv
import io
import logging
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.core import schemas
from pipeline.core.manifest import (
    RowCount,
    StageOutput,
    changed_since,
    describe_file,
    describe_upstream,
    read_batches,
    read_manifest,
    replace_folder,
    write_bytes,
    write_json,
)  # fmt: skip
from pipeline.core.params import EvaluateParams, Params
from pipeline.core.paths import Paths
from pipeline.core.progress import Progress
from pipeline.evaluation.aggregate import Means, rounded
from pipeline.evaluation.assets import asset_file, asset_names
from pipeline.evaluation.joined import answers
from pipeline.evaluation.metrics import signatures
from pipeline.evaluation.profile import Profile, of_inputs
from pipeline.evaluation.scoring import BATCH_ROWS, Scored, Scorer, score_all
from pipeline.evaluation.slices import NONE, OF_ANSWERS, Slices
from pipeline.evaluation.translation import CORPUS
from pipeline.tables.fields import leads_somewhere, near_names

log = logging.getLogger(__name__)
SEED = 0
COUNTS = ("rows", "answers", "scored", "failed", "truncated")


def run(params: Params, paths: Paths) -> dict[str, Any]:
    """Write data/scores, reports/metrics.json and reports/plots. rows in the manifest count answers (row and sample)."""
    evaluate = params.evaluate
    scorer = Scorer(evaluate, paths.assets)
    inputs = _inputs(evaluate, paths)
    expected = sum(item.get("rows", 0) for item in read_manifest(paths.completions)["outputs"])
    with StageOutput(paths.scores, "evaluate") as out:
        out.open("rows", schemas.SCORES)
        night, control = Tally(scorer.names, evaluate.slices), Tally(scorer.names)
        with Progress("evaluate", total=expected, status=paths.work / "status.json") as progress:
            for scored in score_all(evaluate, paths.assets, answers(paths, BATCH_ROWS), expected):
                is_control = scored.table["control"].to_numpy(zero_copy_only=False)
                night.add(scored, ~is_control)
                control.add(scored, is_control)
                out.write("rows", score_lines(scored, scorer.names))
                progress.update(scored.table.num_rows)
        rejected = _rejected(paths)
        profiles = {"night": _profile(night, rejected[False], paths), "control": control.profile.as_dict()}
        write_json(out.temporary / "profile.json", profiles)
        summary = _summary(night, control, rejected, evaluate)
        _warn_of_empty_slices(summary["slices"], paths)
        write_json(paths.metrics_json, summary)
        _write_plots(paths.plots, profiles["night"], summary)
        scored_answers, failed = night.scored + control.scored, night.failed + control.failed
        return out.finish(
            inputs=inputs,
            rows=RowCount(scored_answers + failed, scored_answers, failed=failed),
            params={"evaluate": evaluate},
            mixed=changed_since(inputs, paths.root),
            signatures=signatures(scorer.metrics),
            metrics_json=describe_file(paths.metrics_json, paths.relative(paths.metrics_json)),
        )


class Tally:
    """What is counted over one set of answers: the night's own or the control set's."""

    def __init__(self, metrics: list[str], slices: tuple[str, ...] = ()) -> None:
        self.metrics = metrics
        self.means = Means(len(metrics))
        self.slices = Slices(slices, metrics)
        self.profile = Profile()
        self.corpus: dict[str, np.ndarray] = {}
        self.rows = self.answers = self.scored = self.failed = self.truncated = 0
        self._last = -1

    def add(self, scored: Scored, wanted: np.ndarray) -> None:
        """wanted: bool [rows of the batch]."""
        table, values = scored.table.filter(pa.array(wanted)), scored.values[wanted]
        reasons = np.array([reason or "" for reason in table["finish_reason"].to_pylist()], dtype=object)
        good = reasons != "error"
        ordinals = table["ordinal"].to_numpy()
        self.rows += int((np.diff(ordinals, prepend=self._last) != 0).sum())
        self._last = int(ordinals[-1]) if len(ordinals) else self._last
        self.answers += len(reasons)
        self.scored += int(good.sum())
        self.failed += int((~good).sum())
        self.truncated += int((reasons == "length").sum())
        table, values, ordinals = table.filter(pa.array(good)), values[good], ordinals[good]
        self.means.add(ordinals, values)
        self.slices.add(table, ordinals, values)
        self.profile.add(table)
        for name, counts in scored.corpus.items():
            if counts.shape[1]:
                self.corpus[name] = self.corpus.get(name, 0) + counts[wanted].sum(axis=0)

    def summary(self, draws: int) -> dict[str, dict[str, Any]]:
        """Means with intervals; for BLEU and chrF also the score of the whole corpus, which is no mean of rows."""
        found = self.means.summary(self.metrics, draws, SEED)
        for name in CORPUS.keys() & found.keys():
            score = CORPUS[name][1]
            found[name]["corpus"] = rounded(score(self.corpus[name].tolist())) if found[name]["n_valid"] else None
        return found

    def counts(self, rejected: int) -> dict[str, int]:
        return {name: getattr(self, name) for name in COUNTS} | {"rejected": rejected}


def score_lines(scored: Scored, names: list[str]) -> pa.Table:
    """The long table: one line per answer and metric; failed answers have none. Null where a metric does not apply."""
    finished = np.array([reason != "error" for reason in scored.table["finish_reason"].to_pylist()], dtype=bool)
    kept = np.flatnonzero(finished)
    values = scored.values[kept].reshape(-1)
    index = pa.array(np.repeat(kept, len(names)))
    return pa.table(
        {
            "ordinal": scored.table["ordinal"].combine_chunks().take(index),
            "sample": scored.table["sample"].combine_chunks().take(index),
            "metric": pa.array(names, pa.string()).take(pa.array(np.tile(np.arange(len(names)), len(kept)))),
            "value": pa.array(values, pa.float64(), from_pandas=True),
            "extracted": pa.array(scored.extracted, pa.string()).take(index),
        },
        schema=schemas.SCORES,
    )


def _inputs(evaluate: EvaluateParams, paths: Paths) -> list[dict[str, Any]]:
    folders = (paths.validated, paths.clean, paths.prompts, paths.completions)
    files = [asset_file(name, paths.assets) for name in asset_names(evaluate)]
    described = [describe_upstream(folder, paths.root) for folder in folders]
    return described + [describe_file(file, paths.relative(file)) for file in files]


def _rejected(paths: Paths) -> dict[bool, Counter[str]]:
    """Rejected rows by reason over the stages that reject: False the night's own, True the control set's."""
    found: dict[bool, Counter[str]] = {False: Counter(), True: Counter()}
    for folder in (paths.validated, paths.clean, paths.prompts):
        for table in read_batches(folder, "rejected", ["control", "reason"]):
            for control, reason in zip(table["control"].to_pylist(), table["reason"].to_pylist(), strict=True):
                found[bool(control)][reason] += 1
    return found


def _profile(night: Tally, rejected: Counter[str], paths: Paths) -> dict[str, Any]:
    arrived, answered = of_inputs(night.rows, rejected, read_manifest(paths.validated).get("statistics", {})), night.profile.as_dict()
    return answered | {"words": answered["words"] | arrived["words"], "shares": arrived["shares"]}


def _summary(night: Tally, control: Tally, rejected: dict[bool, Counter[str]], evaluate: EvaluateParams) -> dict[str, Any]:
    draws = evaluate.bootstrap
    return {
        "metrics": night.summary(draws),
        "control": control.summary(draws),
        "slices": night.slices.summary(draws, SEED),
        "rows": {"night": night.counts(rejected[False].total()), "control": control.counts(rejected[True].total())},
    }


def _warn_of_empty_slices(slices: dict[str, dict[str, Any]], paths: Paths) -> None:
    """A field that no row has makes a single slice, which says nothing: most likely its name is misspelt."""
    fields = read_manifest(paths.validated).get("statistics", {}).get("fields", {})
    for field, values in slices.items():
        if set(values) == {NONE} and not leads_somewhere(field.removeprefix("meta."), fields) and field not in OF_ANSWERS:
            log.warning("evaluate.slices: no row has a field %r; %s", field, near_names(field, fields))


def _write_plots(folder: Path, profile: dict[str, Any], summary: dict[str, Any]) -> None:
    """CSV for DVC plots: a histogram of lengths, and scores by slice."""
    lengths = [
        [name, edge, count] for name, counts in profile["lengths"].items() for edge, count in zip(profile["edges"], counts, strict=True)
    ]
    scores = [
        [f"{field}={value}", metric, entry["mean"], entry["low"], entry["high"], values["rows"]]
        for field, slices in summary["slices"].items()
        for value, values in slices.items()
        for metric, entry in values.items()
        if isinstance(entry, dict)
    ]
    temporary = folder.parent / f".{folder.name}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    write_bytes(temporary / "lengths.csv", _csv(["quantity", "from", "rows"], lengths))
    write_bytes(temporary / "slices.csv", _csv(["slice", "metric", "mean", "low", "high", "rows"], scores))
    replace_folder(temporary, folder)


def _csv(header: list[str], rows: list[list[Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([header, *rows])
    return text.getvalue().encode()
