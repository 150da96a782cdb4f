"""The small table at the end of a run."""

from pathlib import Path

from pipeline.core.manifest import write_json
from pipeline.core.paths import Paths
from pipeline.runners.summary import MAX_METRICS, summary_lines


def entry(mean, rows):
    return {"mean": mean, "low": mean - 0.1, "high": mean + 0.1, "n_valid": rows}


def lines(root, metrics, gate=None):
    write_json(Paths(root).metrics_json, metrics)
    if gate:
        write_json(Paths(root).gate_json, gate)
    return summary_lines(Paths(root))


def test_metrics_that_people_ask_for_come_first_and_empty_ones_are_left_out(tmp_path):
    held = {f"other_{n}": entry(0.2, 5) for n in range(20)} | {"exact": entry(0.5, 5), "json_valid": entry(0.0, 0)}
    shown = [line.split()[0] for line in lines(tmp_path, {"metrics": held})[2:-1]]
    assert shown[0] == "exact"
    assert "json_valid" not in shown
    assert len(shown) == MAX_METRICS


def test_a_slice_by_a_field_that_no_row_has_is_not_shown(tmp_path):
    some = {"rows": 3, "exact": entry(0.5, 3)}
    metrics = {"metrics": {"exact": entry(0.5, 3)}, "slices": {"task": {"(none)": some}, "lang": {"zh": some, "(none)": some}}}
    text = "\n".join(lines(tmp_path, metrics))
    assert "by task" not in text
    assert "by lang" in text
    assert "(none)" in text


def test_green_for_want_of_a_baseline_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bare = {"verdict": "green", "reasons": [], "checks": [], "baseline": None}
    control = {"control": {"exact": entry(0.5, 5)}}
    says = "gate      green: nothing to compare with"
    assert lines(Path("."), control, bare) == [f"{says} yet; `pipeline accept` makes this night the baseline"]
    assert lines(Path("an out"), control, bare) == [
        f"{says} yet; `pipeline accept --root '{tmp_path}/an out'` makes this night the baseline"
    ]
    assert lines(Path("."), {}, bare) == [f"{says}: no control set, no limit"]
    assert lines(tmp_path, {}, {"verdict": "green", "reasons": [], "checks": [], "baseline": "ab"}) == ["gate      green"]


def test_the_gates_reasons_are_on_its_line(tmp_path):
    assert lines(tmp_path, {}, {"verdict": "red", "reasons": ["exact fell"]}) == ["gate      red: exact fell"]
