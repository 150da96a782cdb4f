"""New, fixed, still failing: tonight's control answers against the accepted run, by the same rules on the same scores.

The baseline keeps scores, not answers, so both sides are judged by the rules that need no more than scores, with the metrics
that are counted the same way on both sides. Rows are paired by id, sample and a digest of what was asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from pipeline.core.manifest import read_manifest
from pipeline.core.paths import Paths
from pipeline.evaluation.baseline import control_rows, read_baseline
from pipeline.report.rows import Row
from pipeline.report.rules import FAIL_AT, Finding

BY_SCORES = (
    "empty", "sensitive_hit", "looping", "invalid_json", "wrong_language", "refusal", "truncated", "copied_prompt", "low_score",
    "broken_instruction",
)  # fmt: skip
Rules = Mapping[str, Callable[[Row], Finding | None]]


@dataclass(frozen=True)
class SinceAccepted:
    """failed: whether an answer failed in the accepted run, by (ordinal, sample) of tonight; metrics: those both runs count alike."""

    failed: dict[tuple[int, int], bool]
    metrics: frozenset[str]
    rules: Rules

    def state(self, row: Row) -> str | None:
        """new, still, fixed or fine; None where the accepted run says nothing of the answer."""
        before = self.failed.get((row.ordinal, row.sample))
        if before is None:
            return None
        now = row.finish_reason == "error" or _fails(
            {name: value for name, value in row.scores.items() if name in self.metrics}, self.rules
        )
        return ("still" if before else "new") if now else ("fixed" if before else "fine")


def since_accepted(paths: Paths, rules: Rules) -> SinceAccepted:
    """What the accepted run says of tonight's rows; nothing where none was accepted."""
    baseline = read_baseline(paths)
    if baseline is None:
        return SinceAccepted({}, frozenset(), rules)
    signatures = read_manifest(paths.scores).get("signatures", {})
    alike = frozenset(name for name, values in baseline.control.values.items() if baseline.signatures.get(name) == signatures.get(name))
    tonight = {(row["id"], row["digest"]): ordinal for ordinal, row in control_rows(paths).items()}
    failed = {}
    for place, (name, sample, digest) in enumerate(baseline.control.keys):
        ordinal = tonight.get((name, digest))
        if ordinal is not None:
            values = {metric: baseline.control.values[metric][place] for metric in alike}
            failed[ordinal, sample] = _fails({metric: float(value) for metric, value in values.items() if not np.isnan(value)}, rules)
    return SinceAccepted(failed, alike, rules)


def _fails(scores: dict[str, float], rules: Rules) -> bool:
    row = Row(0, scores=scores)
    found = (rule(row) for name, rule in rules.items() if name in BY_SCORES)
    return any(finding is not None and finding.severity >= FAIL_AT for finding in found)
