"""The benchmark's workload and its table; no figure is asserted, machines differ."""

import json

from chains import pipeline

from pipeline.runners.benchmark import workload


def test_the_workload_is_the_same_for_the_same_seed_and_shares_an_instruction():
    assert workload(8, 16, varied=True) == workload(8, 16, varied=True)
    work = workload(8, 16, varied=True)
    assert work.prompts != workload(8, 16, varied=True, seed=1).prompts
    assert sum(prompt.startswith("You are") for prompt in work.prompts) == 4
    assert max(work.new_tokens) > 16 and set(workload(8, 16, varied=False).new_tokens) == {16}


def test_bench_counts_the_tokens_it_asked_for(tiny_checkpoint, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert pipeline("bench", "--model", tiny_checkpoint, "--rows", 1, "--new-tokens", 3, "--repeats", 1, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["results"][0]["new_tokens"] == 3
    assert told["ceilings"]["memory_read_bytes_per_s"] > 0
    assert pipeline("bench", "--model", tiny_checkpoint, "--rows", 1, "--new-tokens", 9999, "--repeats", 1) == 2
