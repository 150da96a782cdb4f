"""dvc.yaml cannot lie: each stage depends on exactly the code it imports and on the params it reads."""

import pytest
from dvc_closure import PROJECT, code_files, read_dvc_yaml

from pipeline.core.hashing import module_file
from pipeline.core.params import Params

STAGES = read_dvc_yaml()["stages"]
ORDER = ["model", "validate", "preprocess", "bucket", "generate", "evaluate", "gate", "report", "publish"]


def built(stage: str) -> bool:
    return module_file(f"pipeline.stages.{stage}") is not None


@pytest.mark.parametrize("stage", ORDER)
def test_code_dependencies_are_the_import_closure(stage):
    if built(stage):
        listed = sorted(dep for dep in STAGES[stage]["deps"] if dep.startswith("pipeline/"))
        assert listed == code_files(stage), "run: python -m tests.dvc_closure --write"


def test_nine_stages_call_their_commands():
    assert list(STAGES) == ORDER
    assert all(STAGES[stage]["cmd"] == f"python -m pipeline {stage}" for stage in ORDER)


def test_every_data_dependency_is_given_or_made_by_an_earlier_stage():
    made = {"data/raw", "data/control", "data/assets", "reports/baseline.json"}
    assert all((PROJECT / path).exists() for path in made)
    for stage in ORDER:
        data = {dep for dep in STAGES[stage]["deps"] if not dep.startswith("pipeline/")}
        assert data <= made, stage
        made |= {
            path for key in ("outs", "metrics") for out in STAGES[stage].get(key, []) for path in ([out] if isinstance(out, str) else out)
        }


def test_params_named_in_dvc_yaml_exist():
    for stage in ORDER:
        for path in STAGES[stage].get("params", []):
            section, _, key = path.partition(".")
            assert section in Params.model_fields
            assert not key or key in type(getattr(Params(), section)).model_fields
