"""Stage gate: green without limits and baseline; red for real drops, limits, mixed runs and metrics without a valid row."""

import json
import random
import re
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from pipeline.cli.accept import accept
from pipeline.core.errors import DataError, ParamsError, UsageError
from pipeline.core.manifest import write_json
from pipeline.core.params import EvaluateParams, GateParams, Params
from pipeline.evaluation import gate as checks
from pipeline.evaluation.gate import Pair, drifts, drops, holm
from pipeline.evaluation.profile import drift, of_inputs
from pipeline.report.headline import reasons
from pipeline.stages import evaluate, gate
from tests.eval_rows import write_run


def control(count, wrong=(), **extra):
    return [
        {"id": f"c{i}", "answer": "no idea" if i in wrong else f"city {i}", "reference": f"city {i}", "control": True,
         "meta": {"task": "ab"[i % 2]}, "prompt": f"Which city is number {i}?", **extra}
        for i in range(count)
    ]  # fmt: skip


NIGHT = [{"id": f"n{i}", "answer": f"answer {i}", "reference": None, "meta": {"task": "ab"[i % 2]}} for i in range(20)]


def judge(root, rows, evaluate_params=None, rejected=0, **limits):
    paths = write_run(root, rows, rejected)
    params = Params(evaluate=EvaluateParams(**{"slices": ("task",), **(evaluate_params or {})}), gate=GateParams(**limits))
    evaluate.run(params, paths)
    gate.run(params, paths)
    return paths, json.loads(paths.gate_json.read_text(encoding="utf-8"))


def accepted(root, rows):
    judge(root, rows)
    done = CliRunner().invoke(accept, ["--root", str(root)])
    assert done.exit_code == 0, done.output
    return root


def test_green_without_limits_and_without_baseline(tmp_path):
    _, verdict = judge(tmp_path, [*NIGHT, *control(12)])
    assert verdict["verdict"] == "green" and verdict["reasons"] == []


@pytest.mark.parametrize(("rows", "rejected"), [([row | {"finish_reason": "error"} for row in NIGHT], 0), ([], 5)])
def test_rows_without_one_answer_are_red(tmp_path, rows, rejected):
    _, verdict = judge(tmp_path, rows, rejected=rejected)
    count = len(rows) + rejected
    assert verdict["verdict"] == "red"
    words = f"{count} rows came in and not one was answered: {rejected} rejected, {len(rows)} answers failed"
    assert verdict["reasons"] == [words]
    assert reasons(verdict)[0]["zh"].startswith(f"共 {count} 行输入，没有一行得到回答")
    _, verdict = judge(tmp_path / "one", [*rows, NIGHT[0]], rejected=rejected)
    assert verdict["verdict"] == "green"


def test_a_file_whose_every_row_was_rejected_is_noted():
    files = [{"path": "a", "rows": 3, "rejected": 3}, {"path": "b", "rows": 3, "rejected": 2}, {"path": "c", "rows": 0, "rejected": 0}]
    assert [(item.red, item.message) for item in checks.rejected_files(files)] == [(False, "a: all of its 3 rows were rejected")]


def test_green_when_nothing_changed_and_red_when_the_control_set_falls(tmp_path):
    accepted(tmp_path, [*NIGHT, *control(20)])
    _, verdict = judge(tmp_path, [*NIGHT, *control(20)])
    assert verdict["verdict"] == "green"
    _, verdict = judge(tmp_path, [*NIGHT, *control(20, wrong=range(14))])
    assert verdict["verdict"] == "red"
    assert any(
        check["metric"] == "exact" and check["red"] and check["rows"] == 20 for check in verdict["checks"] if check["check"] == "drop"
    )


def test_nothing_changed_means_no_difference_at_all(tmp_path):
    rows = [{**row, "answer": f"it is {'x' * i} city {i}"} for i, row in enumerate(control(30))]
    accepted(tmp_path, rows)
    _, verdict = judge(tmp_path, rows)
    assert [check for check in verdict["checks"] if check["check"] == "drop"] == []


def test_two_lost_rows_of_twenty_are_no_proof(tmp_path):
    accepted(tmp_path, control(20))
    _, verdict = judge(tmp_path, control(20, wrong=(3, 7)))
    assert verdict["verdict"] == "green"
    assert any("control/exact changed by -0.1" in note for note in verdict["notes"])


def test_an_allowed_drop_is_allowed_and_rows_are_paired_by_id_in_any_order(tmp_path):
    accepted(tmp_path, control(40))
    worse = control(40, wrong=range(12))
    random.Random(0).shuffle(worse)
    only = {"metrics": ("exact",)}
    _, verdict = judge(tmp_path, worse, only, max_drop={"exact": 0.35})
    assert verdict["verdict"] == "green"
    _, verdict = judge(tmp_path, worse, only, max_drop={"exact": 0.05})
    assert verdict["verdict"] == "red"


def test_a_slice_may_fall_alone(tmp_path):
    accepted(tmp_path, control(40))
    worse = control(40, wrong=range(0, 40, 2))
    limits = {"exact": 0.9, "exact[task=a]": 0.1, "exact[task=b]": 0.0}
    _, verdict = judge(tmp_path, worse, {"metrics": ("exact",)}, max_drop=limits)
    assert [check.get("slice") for check in verdict["checks"] if check["red"]] == ["task=a"]


def test_changed_control_rows_are_not_compared_and_silent_ones_are_red(tmp_path):
    accepted(tmp_path, control(20))
    renamed = [{**row, "prompt": "Another question"} for row in control(20, wrong=range(20))]
    _, verdict = judge(tmp_path, renamed)
    assert "not one control row is in common" in verdict["reasons"][0]
    silent = control(20)
    for row in silent[:2]:
        row |= {"answer": None, "finish_reason": "error"}
    _, verdict = judge(tmp_path, silent)
    assert verdict["reasons"] == ["2 of 20 control rows of the baseline have no answer"]


@pytest.mark.parametrize(
    ("limits", "red"),
    [
        ({"min": {"control/exact": 0.9}}, False),
        ({"min": {"control/exact[task=a]": 1.1}}, True),
        ({"max": {"empty": 0.0}}, False),
        ({"min": {"distinct_1[task=a]": 1.5}}, True),
        ({"min": {"exact": 0.1}}, True),  # the night has no references
        ({"min": {"empty[task=zzz]": 0.1}}, True),
        ({"max_reject_share": 0.1}, True),
        ({"max_reject_share": 0.5}, False),
        ({"max_truncated_share": 0.0}, False),
    ],
)
def test_limits(tmp_path, limits, red):
    _, verdict = judge(tmp_path, [*NIGHT, *control(12)], rejected=5, **limits)
    assert (verdict["verdict"] == "red") is red, verdict["checks"]


def test_failed_share_and_drift(tmp_path):
    accepted(tmp_path, [*NIGHT, *control(12)])
    failed = [{**row, "answer": None, "finish_reason": "error"} for row in NIGHT[:5]]
    _, verdict = judge(tmp_path, [*NIGHT[5:], *failed, *control(12)], max_failed_share=0.2)
    assert "failed (25.0%)" in verdict["reasons"][0]
    long = [{**row, "answer": "much longer " * 30, "language": "zh"} for row in NIGHT]
    _, verdict = judge(tmp_path, [*long, *control(12)], max_drift={"completion_tokens": 0.2})
    assert verdict["drift"]["completion_tokens"] == 1 and verdict["drift"]["language"] == 1
    assert [check["metric"] for check in verdict["checks"] if check["red"]] == ["completion_tokens"]


def test_drift_of_what_came_in(tmp_path):
    accepted(tmp_path, [*NIGHT, *control(12)])
    _, verdict = judge(tmp_path, [*NIGHT, *control(12)], rejected=20, max_drift={"reject_reason": 0.4})
    assert verdict["drift"]["reject_reason"] == 0.5
    assert [check["metric"] for check in verdict["checks"] if check["red"]] == ["reject_reason"]


def test_drift_of_the_fields_names_the_one_that_moved_most():
    before = of_inputs(10, {}, {"rows": 10, "fields": {"id": 10, "text": 10, "task": 9}})
    now = of_inputs(18, {"empty_text": 2}, {"rows": 20, "fields": {"id": 20, "text": 20, "hint": 2}})
    plain = {"edges": [], "lengths": {}}
    moved = drift(plain | now, plain | before)
    assert moved == {"reject_reason": 0.1, "fields[task]": 0.9}
    found = drifts(GateParams(max_drift={"fields": 0.5}), moved)
    assert [(item.metric, item.red) for item in found] == [("fields[task]", True)]
    assert drift(plain | now, plain | {"words": {}}) == {}


def test_a_reason_is_told_in_both_languages(tmp_path):
    _, verdict = judge(tmp_path, [*NIGHT, *control(12)], rejected=5, max_reject_share=0.1)
    (told,) = reasons(verdict)
    assert told["en"] == verdict["reasons"][0] == "5 of 25 rows rejected (20.0%), at most 10.0% allowed"
    assert told["zh"] == "25 行中有 5 行被拒绝（20.0%），最多允许 10.0%"


def test_every_sentence_of_the_gate_names_the_same_facts_in_both_languages():
    sentences = json.loads(resources.files("pipeline.evaluation").joinpath("verdicts.json").read_text("utf-8"))
    used = set(re.findall(r'"(\w+)"', Path(checks.__file__).read_text() + Path(gate.__file__).read_text()))
    assert set(sentences) - used == {"limit_min", "limit_max"}  # made of "limit_" and the limit's name
    for key, texts in sentences.items():
        named = [set(re.findall(r"{(\w+)}", texts[language])) for language in ("en", "zh")]
        assert named[0] == named[1], key


def test_a_field_named_like_one_of_ours_is_sliced_as_meta(tmp_path):
    rows = [{**row, "meta": {"language": "ab"[i % 2]}} for i, row in enumerate(NIGHT)]
    paths = write_run(tmp_path, rows)
    evaluate.run(Params(evaluate=EvaluateParams(slices=("language", "meta.language"))), paths)
    slices = json.loads(paths.metrics_json.read_text())["slices"]
    assert list(slices["language"]) == ["en"] and list(slices["meta.language"]) == ["a", "b"]


def test_a_metric_asked_for_without_a_valid_row_is_red(tmp_path):
    _, verdict = judge(tmp_path, NIGHT, {"metrics": ("exact", "empty")})
    assert verdict["verdict"] == "red" and "exact is asked for" in verdict["reasons"][0]
    _, verdict = judge(tmp_path, NIGHT, {"metrics": "auto"})
    assert verdict["verdict"] == "green"


def test_a_mixed_run_is_red(tmp_path):
    paths = write_run(tmp_path, NIGHT)
    evaluate.run(Params(), paths)
    write_run(tmp_path, NIGHT[:3])
    gate.run(Params(), paths)
    verdict = json.loads(paths.gate_json.read_text(encoding="utf-8"))
    assert verdict["verdict"] == "red" and "run the chain again" in verdict["reasons"][0]


@pytest.mark.parametrize("name", ["data/scores/profile.json", "reports/metrics.json"])
def test_a_damaged_file_is_red(tmp_path, name):
    paths = write_run(tmp_path, NIGHT)
    evaluate.run(Params(), paths)
    file = tmp_path / name
    file.write_text(file.read_text().replace("1", "2"))
    gate.run(Params(), paths)
    verdict = json.loads(paths.gate_json.read_text(encoding="utf-8"))
    assert verdict["reasons"] == [f"{name} is not what its manifest says"]


def test_accepting_a_red_run_needs_a_reason(tmp_path):
    judge(tmp_path, NIGHT, {"metrics": ("exact",)})
    with pytest.raises(UsageError, match="--why"):
        CliRunner().invoke(accept, ["--root", str(tmp_path)], catch_exceptions=False, standalone_mode=False)
    CliRunner().invoke(accept, ["--root", str(tmp_path), "--why", "first night"], catch_exceptions=False)
    assert json.loads((tmp_path / "reports/baseline.json").read_text())["why"] == "first night"


def test_a_metric_counted_in_another_way_is_not_compared(tmp_path):
    accepted(tmp_path, control(20))
    data = json.loads((tmp_path / "reports/baseline.json").read_text())
    data["signatures"]["exact"] = "exact|another tokeniser"
    write_json(tmp_path / "reports/baseline.json", data)
    _, verdict = judge(tmp_path, control(20, wrong=range(20)), {"metrics": ("exact",)})
    assert verdict["verdict"] == "green" and any("counted in another way" in note for note in verdict["notes"])
    _, verdict = judge(tmp_path, control(20, wrong=range(20)), {"metrics": ("exact",)}, max_drop={"exact": 0.1})
    assert verdict["verdict"] == "red"


@pytest.mark.parametrize("text", ["{", "[1]", '{"format": "other"}'])
def test_a_damaged_baseline_is_named(tmp_path, text):
    paths = write_run(tmp_path, NIGHT)
    evaluate.run(Params(), paths)
    paths.baseline_json.write_text(text)
    with pytest.raises(DataError, match=r"baseline\.json"):
        gate.run(Params(), paths)


@pytest.mark.parametrize("limits", [{"min": {"exakt": 1.0}}, {"max_drop": {"exact[task]": 1.0}}])
def test_unknown_keys_are_refused(tmp_path, limits):
    with pytest.raises(ParamsError, match="metric"):
        judge(tmp_path, NIGHT, **limits)


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


def test_noise_is_seldom_red_and_a_real_fall_always():
    generator = np.random.default_rng(1)
    params = GateParams(draws=1000)
    red = 0
    for _ in range(200):
        before = generator.random((8, 60)) < 0.6
        now = generator.random((8, 60)) < 0.6
        red += any(f.red for f in drops([Pair("exact", None, b.astype(float), n.astype(float), 0.0) for b, n in zip(before, now)], params))
    assert red <= 20
    before = np.ones(60)
    now = (generator.random(60) < 0.7).astype(float)
    assert drops([Pair("exact", None, before, now, 0.0)] * 8, params)[0].red
