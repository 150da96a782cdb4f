"""The benchmark's workload and its table; no figure is asserted, machines differ."""

import json

import pytest
from chains import pipeline

from pipeline.core.errors import UsageError
from pipeline.core.params import ModelParams
from pipeline.runners import benchmark
from pipeline.runners.benchmark import Workload, compare, ours, workload


def test_the_workload_is_the_same_for_the_same_seed_and_shares_an_instruction():
    assert workload(8, 16, varied=True) == workload(8, 16, varied=True)
    work = workload(8, 16, varied=True)
    assert work.prompts != workload(8, 16, varied=True, seed=1).prompts
    assert sum(prompt.startswith("You are") for prompt in work.prompts) == 4
    assert max(work.new_tokens) > 16 and set(workload(8, 16, varied=False).new_tokens) == {16}


def test_bench_counts_the_tokens_it_asked_for(tiny_checkpoint, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(benchmark, "workload", lambda rows, new_tokens, varied: Workload(["a short prompt"] * rows, [new_tokens] * rows))
    arguments = ("bench", "--model", tiny_checkpoint, "--rows", 2, "--repeats", 1, "--json", "--new-tokens")
    assert pipeline(*arguments, 3) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["results"][0]["new_tokens"] == 6
    assert told["ceilings"]["memory_read_bytes_per_s"] > 0


def test_a_workload_that_does_not_fit_is_refused(tiny_checkpoint):
    with pytest.raises(UsageError, match="does not fit this model"):
        compare(list(ours(tiny_checkpoint, ModelParams())), Workload(["word " * 2000], [4]), repeats=1)
