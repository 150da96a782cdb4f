"""The measures of an answer that rules need whatever `evaluate.metrics` names; what was evaluated is taken as it is."""

from __future__ import annotations

import json

from pipeline.core.manifest import read_manifest
from pipeline.core.params import EvaluateParams
from pipeline.core.paths import Paths
from pipeline.evaluation.answer import Answer
from pipeline.evaluation.instructions import followed
from pipeline.evaluation.metrics import choose, load_files
from pipeline.evaluation.sensitive import word_list
from pipeline.report.rows import Row

NEEDED = ("empty", "loop_share", "loop_start", "refusal", "language_match", "copied_prompt", "sensitive")


class Measures:
    """Knows how the night was evaluated, works out the needed metrics that it left out, and what lies behind some of them."""

    def __init__(self, paths: Paths) -> None:
        manifest = read_manifest(paths.scores)
        evaluated = manifest.get("signatures", {})
        params = EvaluateParams.model_validate_json(json.dumps(manifest["params"].get("evaluate", {})))
        missing = params.model_copy(update={"metrics": tuple(name for name in NEEDED if name not in evaluated)})
        self._missing = load_files(choose(missing), missing, paths.assets)
        self._words = word_list(params.sensitive_words, paths.assets)

    def complete(self, row: Row) -> None:
        """Add the missing measures to the row's scores, its broken instructions and sensitive hits; a failed row has none."""
        if row.answer is None:
            return
        answer = Answer(row.answer, row.answer, row.references, row.text, row.language, row.finish_reason, row.meta)
        if row.scores.get("instructions", 1) < 1:
            row.broken = [name for name, good in followed(answer) if not good]
        if self._missing:
            for metric in self._missing:
                value = metric.value(answer)
                if value is not None:
                    row.scores[metric.name] = value
        if row.scores.get("sensitive", 0) > 0:
            row.hits = [(hit.id, hit.start, hit.end) for hit in self._words.find(row.answer)]
