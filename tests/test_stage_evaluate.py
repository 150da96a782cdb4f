"""Stage evaluate: every answer scored or counted, metrics.json without NaN, the same bytes for the same input."""

import json

import pytest
import sacrebleu

from pipeline.core.errors import ParamsError
from pipeline.core.manifest import read_manifest, read_table
from pipeline.core.params import EvaluateParams, Params
from pipeline.evaluation.metrics import metric_columns
from pipeline.stages import evaluate
from tests.eval_rows import write_run

ROWS = [
    {"answer": "周末一起去爬山吧", "reference": "周末一起去爬山吧", "language": "zh", "meta": {"task": "chat"}},
    {"answer": "", "reference": "我在家里看书", "language": "zh", "meta": {"task": "chat"}},
    {"answer": "<script>alert(1)</script> the cat sat", "reference": "the cat sat", "meta": {"task": "copy"}},
    {"answer": "free text", "reference": None, "meta": {"task": "free"}},
    {"answer": None, "finish_reason": "error", "reference": "lost", "meta": {"task": "free"}},
    {"answer": "Berlin", "reference": ["Berlin", "Berlin, Germany"], "control": True, "logprobs": [-0.5, -1.5]},
]


def strict_json(file):
    def refuse(name):
        raise AssertionError(f"{file} holds {name}")

    return json.loads(file.read_text(encoding="utf-8"), parse_constant=refuse)


def run(root, rows, **evaluate_params):
    paths = write_run(root, rows)
    evaluate.run(Params(evaluate=EvaluateParams(**evaluate_params)), paths)
    return paths, strict_json(paths.metrics_json)


def scores_of(paths):
    return {(r["ordinal"], r["sample"], r["metric"]): r["value"] for r in read_table(paths.scores).to_pylist()}


def test_identical_is_full_marks_and_a_missing_reference_is_null(tmp_path):
    paths, metrics = run(tmp_path, ROWS)
    scores = scores_of(paths)
    for metric, full in {"exact": 1, "token_f1": 1, "rouge_1": 1, "rouge_2": 1, "rouge_l": 1, "bleu": 100, "chrf": 100}.items():
        assert scores[0, 0, metric] == pytest.approx(full)
        assert scores[1, 0, metric] == 0
        assert scores[3, 0, metric] is None
        assert metrics["metrics"][metric]["n_valid"] == 3
    assert scores[1, 0, "empty"] == 1 and scores[3, 0, "empty"] == 0


def test_corpus_bleu_and_chrf_stand_beside_the_means(tmp_path):
    texts = [
        ("the cat sat on the mat today", "the cat sat on a mat today"),
        ("it is raining", "it rains a lot"),
        ("a b c d e", "a b c d e"),
    ]
    _, metrics = run(tmp_path, [{"answer": text, "reference": reference} for text, reference in texts])
    answers, references = zip(*texts, strict=True)
    assert metrics["metrics"]["bleu"]["corpus"] == pytest.approx(sacrebleu.corpus_bleu(answers, [references]).score)
    assert metrics["metrics"]["chrf"]["corpus"] == pytest.approx(sacrebleu.corpus_chrf(answers, [references]).score)
    assert metrics["control"]["bleu"]["corpus"] is None


def test_failed_answers_are_counted_not_scored_and_control_rows_stay_apart(tmp_path):
    paths, metrics = run(tmp_path, ROWS)
    assert {ordinal for ordinal, _, _ in scores_of(paths)} == {0, 1, 2, 3, 5}
    assert metrics["rows"]["night"] == {"rows": 5, "answers": 5, "scored": 4, "failed": 1, "truncated": 0, "rejected": 0}
    assert metrics["rows"]["control"]["scored"] == 1
    assert metrics["control"]["exact"] == {"mean": 1.0, "low": 1.0, "high": 1.0, "n_valid": 1}
    assert read_manifest(paths.scores)["rows"] == {"into": 6, "out": 5, "rejected": 0, "failed": 1}


def test_nothing_valid_gives_null_never_nan(tmp_path):
    _, metrics = run(tmp_path, [{"answer": "free", "reference": None}], metrics=("exact", "bleu"))
    assert metrics["metrics"]["exact"] == {"mean": None, "low": None, "high": None, "n_valid": 0}


def test_an_empty_run_still_writes_everything(tmp_path):
    paths, metrics = run(tmp_path, [])
    assert read_table(paths.scores).num_rows == 0
    assert metrics["rows"]["night"]["answers"] == 0


def test_slices_hold_the_nights_rows_only_and_mark_small_ones(tmp_path):
    _, metrics = run(tmp_path, ROWS, slices=("task", "language"))
    assert set(metrics["slices"]["task"]) == {"chat", "copy", "free"}
    assert metrics["slices"]["task"]["chat"]["exact"]["mean"] == 0.5
    assert metrics["slices"]["task"]["chat"]["rows"] == 2
    assert metrics["slices"]["task"]["chat"]["small"] is True
    assert metrics["slices"]["language"]["zh"]["exact"]["n_valid"] == 2


def test_answers_made_elsewhere_need_no_logprobs_and_no_bucket(tmp_path):
    paths, metrics = run(tmp_path, [{"answer": "yes", "reference": "yes", "bucket": None}])
    assert metrics["metrics"]["perplexity"]["n_valid"] == 0
    assert metrics["slices"]["bucket"]["(none)"]["rows"] == 1
    assert len({metric for _, _, metric in scores_of(paths)}) >= 8


def test_extraction_by_a_field_of_the_row(tmp_path):
    rows = [
        {"answer": "So 3 + 4 = 7.", "reference": "7", "meta": {"task": "sum"}},
        {"answer": "Paris\nIt is in France.", "reference": "Paris", "meta": {"task": "city"}},
        {"answer": "<think>Maybe Rome?</think>London", "reference": "London", "meta": {"task": "other"}},
    ]
    extract = {"by": "task", "sum": "last_number", "city": "first_line"}
    paths, metrics = run(tmp_path, rows, extract=extract, metrics=("exact", {"numeric": {"where": {"task": "sum"}}}))
    assert metrics["metrics"]["exact"]["mean"] == 1
    assert metrics["metrics"]["numeric"]["n_valid"] == 1
    extracted = {r["ordinal"]: r["extracted"] for r in read_table(paths.scores).to_pylist()}
    assert extracted == {0: "7", 1: "Paris", 2: "London"}


def test_the_same_input_gives_the_same_bytes_in_any_number_of_processes(tmp_path, monkeypatch):
    rows = [{"answer": f"word {i} " * (i % 7), "reference": f"word {i}", "sample": 0, "meta": {"k": i % 3}} for i in range(700)]
    first, _ = run(tmp_path / "a", rows, slices=("k",))
    monkeypatch.setattr("pipeline.evaluation.scoring.POOL_FROM_ROWS", 1)
    second, _ = run(tmp_path / "b", rows, slices=("k",))
    for name in ("data/scores/rows.parquet", "data/scores/profile.json", "reports/metrics.json", "reports/plots/slices.csv"):
        assert (first.root / name).read_bytes() == (second.root / name).read_bytes(), name


def test_metric_columns_come_from_params_alone():
    columns = metric_columns(EvaluateParams())
    assert columns == metric_columns(EvaluateParams()) and len(columns) == len(set(columns)) >= 8
    assert "logprob_mean" not in columns
    assert metric_columns(EvaluateParams(metrics=("chrf", "exact"))) == ["chrf", "exact"]


@pytest.mark.parametrize(
    ("params", "names"),
    [
        ({"metrics": ("exakt",)}, "exakt"),
        ({"metrics": ("exact", "exact")}, "twice"),
        ({"metrics": ({"numeric": {"tolerence": 1}},)}, "tolerence"),
        ({"metrics": ("regex_match",)}, "pattern"),
        ({"extract": "last_numbr"}, "last_numbr"),
        ({"extract": {"regex": "("}}, "regex"),
    ],
)
def test_wrong_params_are_named(tmp_path, params, names):
    with pytest.raises(ParamsError, match=names):
        run(tmp_path, ROWS, **params)


def test_a_slice_field_that_no_row_has_is_told_of(tmp_path, caplog):
    run(tmp_path, ROWS, slices=("task", "meta.tsk", "bucket", "finish_reason"))
    assert [record.getMessage().split(";")[0] for record in caplog.records] == ["evaluate.slices: no row has a field 'meta.tsk'"]
