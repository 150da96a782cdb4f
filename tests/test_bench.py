"""The benchmark's workload and its table; no figure is asserted, machines differ."""

import json

import pytest
from chains import pipeline, rows, write_rows

from pipeline.core.errors import UsageError
from pipeline.runners.benchmark import workload
from pipeline.runners.contenders import read_workload


def test_the_workload_is_the_same_for_the_same_seed_and_shares_an_instruction():
    assert workload(8, 16, varied=True) == workload(8, 16, varied=True)
    work = workload(8, 16, varied=True)
    assert work.prompts != workload(8, 16, varied=True, seed=1).prompts
    assert sum(prompt.startswith("You are") for prompt in work.prompts) == 4
    assert max(work.new_tokens) > 16 and set(workload(8, 16, varied=False).new_tokens) == {16}


def bench(tiny_checkpoint, file, *options):
    return pipeline("bench", "--model", tiny_checkpoint, "--workload", file, "--repeats", 1, *options)


@pytest.fixture
def work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [{"text": f"a short prompt {n}", "max_new_tokens": 3 + n, "ignore_eos": True} for n in range(2)]
    file = tmp_path / "work.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return file


def test_bench_counts_the_tokens_it_asked_for_and_compares_the_answers(tiny_checkpoint, work, capsys):
    ways = ("static", "no-cache", "transformers")
    assert bench(tiny_checkpoint, work, *[x for way in ways for x in ("--beside", way)], "--json", "-S", "model.dtype=float32") == 0
    told = json.loads(capsys.readouterr().out)
    assert [result["who"] for result in told["results"]] == ["this engine", *ways]
    assert [result["new_tokens"] for result in told["results"]] == [7] * 4
    assert [result["same_answers"] for result in told["results"]] == [2] * 4
    assert told["ceilings"]["memory_read_bytes_per_s"] > 0
    assert all(result["peak_rss_bytes"] > 1e8 for result in told["results"])


@pytest.mark.parametrize(
    ("beside", "words"),
    [("vllm", "not one of static"), ("openvino", "openvino_genai is not installed"), ("transformers", "transformers is not installed")],
)
def test_a_peer_that_cannot_be_measured_is_named(tiny_checkpoint, work, monkeypatch, capsys, beside, words):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert bench(tiny_checkpoint, work, "--beside", beside) == 2
    assert words in capsys.readouterr().err


def test_a_workload_that_does_not_fit_is_refused(tiny_checkpoint, work, capsys):
    work.write_text(json.dumps({"text": "word " * 2000, "max_new_tokens": 4}), encoding="utf-8")
    assert bench(tiny_checkpoint, work) == 2
    assert "does not fit this model" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ["", '{"text": "a"}', '{"text": "a", "max_new_tokens": 1}\n{"text": "a", "max_new_tokens": 1, "ignore_eos": false}']
)
def test_a_damaged_workload_is_refused(tmp_path, text):
    (tmp_path / "w.jsonl").write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=r"one line or more|a line is"):
        read_workload(tmp_path / "w.jsonl")


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
