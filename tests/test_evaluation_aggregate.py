"""Means, intervals and paired differences: right by hand, honest in the long run, the same in any batch, flat in memory."""

import numpy as np
import pytest

from pipeline.evaluation.aggregate import GROUPS, Means, bootstrap_means, paired_difference
from pipeline.evaluation.profile import Profile, drift


def summary(values, ordinals=None, batch=None, draws=500):
    values = np.asarray(values, float).reshape(len(values), -1)
    ordinals = np.arange(len(values)) if ordinals is None else np.asarray(ordinals)
    means = Means(values.shape[1])
    for start in range(0, len(values), batch or max(1, len(values))):
        stop = start + (batch or len(values))
        means.add(ordinals[start:stop], values[start:stop])
    return means, means.summary([f"m{i}" for i in range(values.shape[1])], draws)


def test_mean_and_count_leave_out_what_is_not_valid():
    _, found = summary([[1.0, np.nan], [0.0, np.nan], [np.nan, np.nan]])
    assert found["m0"]["mean"] == 0.5 and found["m0"]["n_valid"] == 2
    assert found["m1"] == {"mean": None, "low": None, "high": None, "n_valid": 0}


def test_without_draws_there_is_no_interval_and_without_rows_no_mean():
    assert summary([[1.0]], draws=0)[1]["m0"] == {"mean": 1.0, "low": None, "high": None, "n_valid": 1}
    assert Means(1).summary(["m"], 100)["m"]["mean"] is None


@pytest.mark.parametrize("batch", [1, 7, 512, 5000])
def test_batches_change_nothing(batch):
    values = np.random.default_rng(0).random((5000, 2))
    assert summary(values, batch=batch)[1] == summary(values)[1]


def test_samples_of_a_row_are_drawn_together():
    values = np.repeat(np.random.default_rng(0).random(50) < 0.5, 20).astype(float)
    means, by_row = summary(values, ordinals=np.repeat(np.arange(50), 20))
    _, alone = summary(values)
    assert means.rows == 50
    assert by_row["m0"]["high"] - by_row["m0"]["low"] > 3 * (alone["m0"]["high"] - alone["m0"]["low"])


def test_memory_is_flat_beyond_the_number_of_groups_and_the_interval_stays_right():
    values = (np.random.default_rng(0).random(50_000) < 0.3).astype(float)
    means, found = summary(values, batch=4096, draws=1000)
    assert len(means._sums) == GROUPS and means.rows == 50_000
    exact = 2 * 1.96 * np.sqrt(0.3 * 0.7 / 50_000)
    assert found["m0"]["high"] - found["m0"]["low"] == pytest.approx(exact, rel=0.15)


def test_the_interval_holds_the_truth_about_as_often_as_it_says():
    generator = np.random.default_rng(5)
    held = 0
    for _ in range(300):
        _, found = summary(generator.random(60) < 0.4, draws=200)
        held += found["m0"]["low"] <= 0.4 <= found["m0"]["high"]
    assert 0.9 <= held / 300 <= 0.99


def test_paired_difference_by_hand():
    mean, low, high, wins, losses, ties = paired_difference(np.array([0.0, 1, 1, np.nan]), np.array([1.0, 1, 0, 1]), 500)
    assert (mean, wins, losses, ties) == (0.0, 1, 1, 1)
    assert low <= 0 <= high
    empty = paired_difference(np.array([np.nan]), np.array([1.0]))
    assert np.isnan(empty[0]) and empty[3:] == (0, 0, 0)
    assert paired_difference(np.zeros(5), np.ones(5)) == (1.0, 1.0, 1.0, 5, 0, 0)


def test_bootstrap_of_distinct_values_equals_the_bootstrap_of_rows_in_law():
    values = np.repeat([0.0, 0.5, 1.0], [30, 10, 60])
    means = bootstrap_means(values, 4000, 0)
    assert means.mean() == pytest.approx(values.mean(), abs=0.005)
    assert means.std() == pytest.approx(values.std() / 10, rel=0.06)


def test_drift_is_the_share_of_rows_that_moved():
    now, before = Profile().as_dict(), Profile().as_dict()
    assert drift(now, before) == {}
    before["lengths"]["prompt_tokens"][3] = 10
    now["lengths"]["prompt_tokens"][3] = 7
    now["lengths"]["prompt_tokens"][9] = 3
    before["words"]["language"], now["words"]["language"] = {"en": 8, "zh": 2}, {"en": 5, "de": 5}
    assert drift(now, before) == {"prompt_tokens": 0.3, "language": 0.5}
    assert drift(now, before | {"edges": [0, 1]}) == {}
