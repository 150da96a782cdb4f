"""Before anything costs time: the params that only the last stages read, checked while a mistake is still cheap."""

from __future__ import annotations

from pipeline.core.params import Params
from pipeline.core.paths import Paths


def check_late_params(params: Params, paths: Paths) -> None:
    """Cleaning steps, schema, metrics and their files, gate keys, report rules. Raises ParamsError or MissingInput.

    Each stage checks its own again; a misspelt metric would be found only after the night's generation.
    """
    from pipeline.evaluation.gate import parse_key
    from pipeline.evaluation.scoring import Scorer
    from pipeline.report.rules import resolve
    from pipeline.runners.settings import load_schema
    from pipeline.text.steps import choose_steps

    choose_steps(params.preprocess.steps)
    load_schema(params.generate.json_schema, paths.assets)
    Scorer(params.evaluate, paths.assets)
    for name in ("min", "max", "max_drop"):
        for key in getattr(params.gate, name):
            parse_key(key, f"gate.{name}")
    resolve(params.report.rules)
