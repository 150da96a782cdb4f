"""docs/evaluation.md names every metric and extractor, and its examples are valid params."""

import re

import pytest

from pipeline.core.hashing import PACKAGE
from pipeline.core.params import parse_params, read_yaml
from pipeline.evaluation import gate
from pipeline.evaluation.extract import EXTRACTORS, build_extractor
from pipeline.evaluation.metrics import METRICS

TEXT = (PACKAGE.parent / "docs/evaluation.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```yaml\n(.*?)```", TEXT, flags=re.S)


def test_every_metric_and_extractor_is_told_of_and_nothing_else():
    tables = {name for line in TEXT.splitlines() if line.startswith("| `") for name in re.findall(r"`([a-z_0-9]+)`", line.split("|")[1])}
    told = {name for name in tables if not name.startswith("max_")}
    assert set(METRICS) <= told
    assert {name for name in EXTRACTORS if f"`{name}`" in TEXT or f"`{{{name}:" in TEXT} == set(EXTRACTORS)
    assert told <= set(METRICS) | set(EXTRACTORS)


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_are_valid(example):
    params = parse_params(read_yaml(example, "docs"))
    build_extractor(params.evaluate.extract)
    for where in ("min", "max", "max_drop"):
        for key in getattr(params.gate, where):
            assert gate.parse_key(key, where).metric in METRICS
