"""The plan: figures from lengths, a calibration on real prompts, what the store has, what DVC would run."""

import json

import numpy as np
import pytest
from chains import pipeline, rows, run_chain, write_rows

from pipeline.cli.plan import figure, label, lines
from pipeline.core.params import Params
from pipeline.runners.calibration import Calibration, spread
from pipeline.runners.plan import padding, token_figures, waste


def test_padding_is_counted_as_people_batch():
    lengths = np.array([10, 30] * 32, np.int64)
    assert waste(lengths, batch_rows=2) == pytest.approx(1 - 40 / 60)
    assert waste(np.sort(lengths), batch_rows=2) == 0
    told = padding(lengths, np.where(lengths == 10, 16, 32))
    assert told["as they come"] == pytest.approx(1 / 3)
    assert told["sorted"] == 0
    assert told["by bucket"] == pytest.approx(1 - 40 / 48)
    assert padding(np.zeros(0, np.int64), np.zeros(0, np.int64)) == {}


def test_calibration_rows_are_spread_over_the_lengths():
    lengths = [5, 1, 9, 3, 7]
    assert sorted(lengths[i] for i in spread(lengths, 3)) == [1, 5, 9]
    assert sorted(spread(lengths, 50)) == [0, 1, 2, 3, 4]


def test_expected_time_is_prefill_and_decode():
    measured = Calibration(rows=4, seconds=1.0, prefill_tokens_per_s=100.0, decode_tokens_per_s=10.0, completion_tokens=5.0)
    assert measured.seconds_for(prompt_tokens=200, rows=8) == pytest.approx(2 + 4)


def test_plan_before_and_after_the_run(tmp_path, tiny_checkpoint, monkeypatch, capsys):
    file, out = write_rows(tmp_path / "in.jsonl", rows(10)), tmp_path / "out"
    out.mkdir()
    monkeypatch.chdir(out)
    settings = [word for item in ("generate.max_new_tokens=4", "generate.kv_memory=8000000") for word in ("-S", item)]
    settings += ["--model", str(tiny_checkpoint)]
    assert pipeline("plan", file, "--json", "--seconds", 0.1, *settings) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["rows"]["to answer"] == 10
    assert told["store"]["in the store"] + told["store"]["to generate"] == told["store"]["answers wanted"] == 10
    assert told["time"]["generate_s"] > 0
    assert told["memory"]["longest rows that fit at once"] > 1
    assert not (out / "data").exists()
    assert run_chain(file, out, tiny_checkpoint, tokens=4) == 0
    capsys.readouterr()
    assert pipeline("plan", file, "--json", "--seconds", 0.1, *settings) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["store"]["to generate"] == 0
    assert told["time"]["generate_s"] == 0
    assert lines(told)[0].startswith("rows     read 10") and "after your -S" not in told


def test_spread_of_lengths_is_told_to_a_tenth():
    lengths = np.array([40, 57, 73, 88, 1], np.int64)
    told = token_figures(lengths, Params(), None)
    assert (told["P50"], told["P90"], told["P99"]) == (57.0, 82.0, 87.4)


def test_a_file_that_is_not_there_is_named_without_a_temporary_folder(tmp_path, tiny_checkpoint, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert pipeline("plan", "no.jsonl", "--model", tiny_checkpoint) == 2
    told = capsys.readouterr().err
    assert f"{tmp_path}/no.jsonl: no such file and no glob" in told and "pipeline-plan-" not in told


def test_figures_carry_their_units():
    assert figure("padding", "sorted", 0.123) == "12.3%"
    assert figure("memory", "weights", 5 * 1024**2) == "5.0 MiB"
    assert figure("time", "generate_s", 2.5) == "2.5 s"
    assert label("rows_per_s") == "rows/s"
