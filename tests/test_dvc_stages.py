"""dvc.yaml cannot lie: a stage that is given only what dvc.yaml declares for it writes the same bytes as in the whole chain."""

import importlib
import json
import shutil

import pytest
from dvc_closure import read_dvc_yaml

from pipeline.core.params import Params, parse_params
from pipeline.core.paths import Paths
from pipeline.runners.dvc_graph import outs

STAGES = read_dvc_yaml()["stages"]
# Values away from the defaults, so that a stage which reads an undeclared key puts out something else.
UNUSUAL = {
    "data": {"limit_rows": 30, "max_row_bytes": 5000},
    "model": {"dtype": "float32", "max_model_len": 180},
    "preprocess": {"min_chars": 4},
    "prompt": {"system": "Answer shortly."},
    "bucket": {"edges": [64, 96], "pad_multiple": 4},
    "generate": {"max_new_tokens": 6, "temperature": 0.5, "seed": 3, "stop": ["zz"], "logprobs": 2},
    "evaluate": {"slices": ["task"], "bootstrap": 50},
    "gate": {"max_reject_share": 0.9},
    "report": {"max_cases": 7, "language": "zh"},
}


@pytest.fixture(scope="module")
def chain(tmp_path_factory, tiny_checkpoint):
    """(paths, params) of a whole run over a few rows."""
    paths = Paths(tmp_path_factory.mktemp("chain"))
    write_rows(paths)
    params = parse_params({**UNUSUAL, "model": {**UNUSUAL["model"], "source": str(tiny_checkpoint)}})
    for stage in STAGES:
        run_stage(stage, params, paths)
    return paths, params


def write_rows(paths):
    for folder, count in (("raw", 24), ("control", 6)):
        (paths.root / "data" / folder).mkdir(parents=True)
        rows = [
            {"id": f"{folder}{i}", "text": f"What is {i} plus {i}?", "reference": str(2 * i), "task": "abc"[i % 3]} for i in range(count)
        ]
        rows.append({"id": f"{folder}-short", "text": "hm", "task": "a"})
        (paths.root / "data" / folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + "{broken\n")
    paths.assets.mkdir()
    (paths.assets / "README.md").write_text("no rows\n")
    (paths.root / "reports").mkdir()
    paths.baseline_json.write_text("{}\n")


def run_stage(name, params, paths):
    return importlib.import_module(f"pipeline.stages.{name}").run(params, paths)


@pytest.mark.parametrize("stage", list(STAGES))
def test_a_stage_reads_nothing_but_what_is_declared(stage, chain, tmp_path):
    whole, params = chain
    alone = Paths(tmp_path)
    for dep in STAGES[stage]["deps"]:
        if not dep.startswith("pipeline/"):
            (alone.root / dep).parent.mkdir(parents=True, exist_ok=True)
            copy = shutil.copytree if (whole.root / dep).is_dir() else shutil.copyfile
            copy(whole.root / dep, alone.root / dep)
    run_stage(stage, only(params, STAGES[stage].get("params", [])), alone)
    for out in outs(STAGES[stage]):
        assert contents(alone.root / out) == contents(whole.root / out), out


def only(params: Params, declared: list[str]) -> Params:
    """The declared keys' values, defaults elsewhere."""
    data = params.model_dump(mode="json")
    kept = {}
    for path in declared:
        section, _, key = path.partition(".")
        kept.setdefault(section, {}).update({key: data[section][key]} if key else data[section])
    return parse_params(kept)


def contents(place):
    """Bytes of a file, or of all files below a folder."""
    if place.is_file():
        return place.read_bytes()
    return {file.relative_to(place).as_posix(): file.read_bytes() for file in sorted(place.rglob("*")) if file.is_file()}
