"""The night page: from the first night on, after torn files and failed nights, with the place marked where a metric moved."""

import json

import night_history as nh
import pytest

from pipeline.core.manifest import write_json
from pipeline.core.paths import Paths
from pipeline.report import charts
from pipeline.report.night_page import changes, moved_at, read_history, series, trends, write_night_page
from pipeline.runners.run_record import write_run


@pytest.mark.parametrize("nights", [1, 2, 30])
def test_page_tells_verdict_trends_and_time(tmp_path, nights):
    paths = Paths(tmp_path)
    nh.write(paths, nights)
    page = write_night_page(paths).read_text(encoding="utf-8")
    assert page.count("<figure>") == 7  # exact, chrf, refusal, four quantities; numeric never had a value
    assert "generate" in page and "P50 / P95 / P99" in page
    assert "r&lt;7&gt;" in page and "r<7>" not in page
    assert ("What changed since the night before" in page) == (nights > 1)


def test_no_night_yet_and_a_night_that_failed(tmp_path):
    paths = Paths(tmp_path)
    assert "No night has run yet" in write_night_page(paths).read_text(encoding="utf-8")
    nh.write(paths, 3)
    with open(paths.runs / "history.jsonl", "a") as handle:
        handle.write(json.dumps({"run": "x", "verdict": "failed", "exit_code": 4, "wall_s": 2.0}) + "\n" + '{"run": "torn')
    page = write_night_page(paths).read_text(encoding="utf-8")
    assert "The night did not finish" in page and "(4)" in page
    assert len(read_history(paths)) == 4
    assert len(trends(read_history(paths))[0].values) == 3


@pytest.mark.parametrize("at", [8, 15, 22])
def test_the_night_a_metric_moved_is_marked_once(tmp_path, at):
    paths = Paths(tmp_path)
    nh.write(paths, 30, shift_at=at)
    moved = {name: moved_at(values) for name, values, *_ in series(read_history(paths))}
    assert moved["exact"] == [at] and moved["chrf"] == [at] and moved["refusal"] == []


def test_noise_is_rarely_called_a_move(tmp_path):
    marked = 0
    for seed in range(20):
        paths = Paths(tmp_path / str(seed))
        nh.write(paths, 30, seed=seed)
        marked += sum(len(moved_at(values)) for _, values, *_ in series(read_history(paths)))
    assert marked <= 4  # of 20 times 7 lines of 30 nights


def test_nights_without_a_change_do_not_count_as_nights(tmp_path):
    paths = Paths(tmp_path)
    nh.write(paths, 4)
    with open(paths.runs / "history.jsonl", "a") as handle:
        handle.write(
            json.dumps({"run": "2026-10-04T02-00-00", "unchanged": True, "verdict": "green", "exit_code": 0, "wall_s": 1.0}) + "\n"
        )
    assert len(trends(read_history(paths))[0].values) == 4
    assert "nothing new" in write_night_page(paths).read_text(encoding="utf-8")


def test_a_control_set_that_is_new_tonight_is_not_compared_with_the_rows_of_the_night_before(tmp_path):
    paths = Paths(tmp_path)
    before, now = nh.write(paths, 2)
    history = [before | {"control": {}}, now]
    assert not any(item["is_metric"] for item in changes(history))
    assert {name: values[0] for name, values, is_metric, _ in series(history) if is_metric} == dict.fromkeys(("exact", "chrf", "refusal"))
    rows = [before | {"control": {}}, now | {"control": {}}]
    assert {(item["name"], item["now"]) for item in changes(rows) if item["is_metric"]} == {
        (name, now["metrics"][name]) for name in ("exact", "chrf")
    }


def test_a_run_on_other_files_is_no_night_before(tmp_path):
    paths = Paths(tmp_path)
    nights = nh.write(paths, 3)
    lines = [nights[0], nights[1], nights[1] | {"command": "run", "metrics": {"exact": 0.0}, "control": {"exact": 0.0}}, nights[2]]
    (paths.runs / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_history(paths) == nights


def test_a_night_with_nothing_to_compare_with_is_not_shown_as_good(tmp_path):
    paths = Paths(tmp_path)
    nights = nh.write(paths, 3)
    lines = [nights[0] | {"open": True}, *nights[1:]]
    (paths.runs / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_json(paths.gate_json, {"verdict": "green", "reasons": [], "checks": [], "baseline": None})
    page = write_night_page(paths).read_text(encoding="utf-8")
    assert '<header class="open">' in page and "`pipeline accept` makes this night the baseline" in page
    assert page.count('class="dot open"') == 2 and page.count('class="dot green"') == 1


@pytest.mark.parametrize(
    ("checks", "baseline", "is_open"), [([], None, True), ([{"check": "min", "red": False}], None, False), ([], "ab", False)]
)
def test_the_record_of_a_run_keeps_whether_there_was_anything_to_compare_with(tmp_path, checks, baseline, is_open):
    paths = Paths(tmp_path)
    write_json(paths.gate_json, {"verdict": "green", "reasons": [], "checks": checks, "baseline": baseline})
    write_run(paths, command="night", started=0.0, exit_code=0)
    (line,) = read_history(paths)
    assert (line["verdict"], line["open"]) == ("green", is_open)


def test_charts_take_the_pages_colours_and_are_the_same_twice():
    first, second = (charts.trend([0.1, None, 0.3, 0.2], moved=[2]) for _ in range(2))
    assert first == second
    assert "var(--accent)" in first and "#0101" not in first and "<metadata" not in first and "20" in first
    assert "nan" not in charts.timeline([0.0, 1.0, 2.0], [[1, 2, None], [None, 1, 1]]).lower()


def test_gaps_and_short_histories_move_nothing():
    assert moved_at([]) == [] and moved_at([None, 0.5]) == [] and moved_at([0.5] * 30) == []
    assert moved_at([0.5] * 10 + [None] + [0.9] * 3) == [11]
