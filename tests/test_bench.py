"""The benchmark's workload and its table; no figure is asserted, machines differ."""

import json

import pytest
from chains import pipeline, rows, write_rows

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


@pytest.mark.slow
def test_precisions_are_compared_on_the_prompts_of_the_project(tiny_checkpoint, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "in.jsonl", rows(6))
    arguments = ("--model", tiny_checkpoint, "-S", "data.inputs=[in.jsonl]", "-S", "data.control=[]", "--rows", 2, "--new-tokens", 3)
    assert pipeline("bench", "--precisions", "--json", *arguments) == 0
    lines = {line["precision"]: line for line in map(json.loads, capsys.readouterr().out.splitlines())}
    assert list(lines) == ["float32", "bfloat16", "int8", "int4"]
    assert lines["float32"]["kl"] < 1e-6 < lines["int8"]["kl"] < lines["int4"]["kl"]
    assert lines["float32"]["top1"] == 1 and lines["int4"]["bytes"] < lines["int8"]["bytes"] < lines["bfloat16"]["bytes"]
    assert lines["float32"]["perplexity"]["all"] == pytest.approx(lines["bfloat16"]["perplexity"]["all"], rel=0.05)
