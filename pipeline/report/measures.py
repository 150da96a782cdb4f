"""The measures of an answer that rules need whatever `evaluate.metrics` names; what was evaluated is taken as it is."""

from __future__ import annotations

from pipeline.core.manifest import read_manifest
from pipeline.core.paths import Paths
from pipeline.evaluation.answer import Answer
from pipeline.evaluation.metrics import METRICS
from pipeline.report.rows import Row

NEEDED = ("empty", "loop_share", "loop_start", "refusal", "language_match", "copied_prompt")


class Measures:
    """Knows which of the needed metrics the night was evaluated with, and works out the others."""

    def __init__(self, paths: Paths) -> None:
        evaluated = read_manifest(paths.scores).get("signatures", {})
        self.missing = [name for name in NEEDED if name not in evaluated]

    def complete(self, row: Row) -> None:
        """Add the missing measures to the row's scores; a failed row has none."""
        if not self.missing or row.answer is None:
            return
        answer = Answer(row.answer, row.answer, row.references, row.text, row.language, row.finish_reason)
        for name in self.missing:
            value = METRICS[name].score(answer)
            if value is not None:
                row.scores[name] = float(value)
