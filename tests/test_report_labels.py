"""Labels: out as JSONL and CSV, back in checked, heard by the next report, on to the control set and to fine-tuning."""

import csv
import io
import json

import night_tree as nt
import pytest
from click.testing import CliRunner

from pipeline.cli.label import label as command
from pipeline.core.errors import MissingInput, UsageError
from pipeline.core.manifest import read_table
from pipeline.core.params import Params
from pipeline.report import fine_tuning, label_exchange
from pipeline.report.labels import labels_file, read_labels
from pipeline.stages import report


@pytest.fixture
def night(tmp_path):
    rows = [nt.row(n, "wrong" if n % 3 else "good") for n in range(30)]
    rows[1] |= {"id": "=cmd", "answer": "=1+1 is all I say"}
    paths = nt.build(tmp_path, rows)
    report.run(Params(), paths)
    return paths


def put(paths, rows, name="back.jsonl"):
    file = paths.root / name
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def test_export_is_ranked_and_one_per_group(night):
    rows = label_exchange.cases(night, limit=100)
    groups = [row["group"] for row in rows if row["group"] is not None]
    assert len(groups) == len(set(groups)) > 0
    assert [row["rank"] for row in rows] == sorted(row["rank"] for row in rows)
    assert all(row["verdict"] is row["corrected"] is row["cause"] is None for row in rows)
    assert len(label_exchange.cases(night, limit=100, per_group=50)) == 20
    assert len(label_exchange.cases(night, limit=3, per_group=50)) == 3


def test_a_spreadsheet_runs_no_cell_and_gives_ids_back(night):
    file = night.root / "out.csv"
    rows = label_exchange.cases(night, limit=100, per_group=50)
    label_exchange.write_rows(file, rows, label_exchange.COLUMNS)
    table = list(csv.DictReader(io.StringIO(file.read_text(encoding="utf-8-sig"), newline="")))
    assert not any(cell.startswith(("=", "+", "-", "@")) for row in table for cell in row.values())
    assert [row["prompt"] for row in table] == [row["prompt"] for row in rows]
    for row in table:
        row["verdict"] = "bad" if row["id"] == "'=cmd" else ""
    buffer = io.StringIO(newline="")
    writer = csv.DictWriter(buffer, table[0])
    writer.writeheader()
    writer.writerows(table)
    file.write_text(buffer.getvalue(), encoding="utf-8-sig")
    assert label_exchange.take_in(night, file)["new"] == 1
    assert ("=cmd", 0) in read_labels(labels_file(night))


def test_verdicts_override_rules_until_the_answer_changes(night):
    before = {item["ordinal"] for item in read_table(night.bad_cases).to_pylist()}
    assert 2 in before and 0 not in before
    file = put(night, [{"id": "r2", "verdict": "good"}, {"id": "r0", "verdict": "bad", "cause": "prompt"}])
    assert label_exchange.take_in(night, file) == {"read": 2, "new": 2, "already_there": 0, "unknown": 0}
    report.run(Params(), night)
    table = read_table(night.bad_cases).to_pylist()
    assert {item["ordinal"] for item in table} == before - {2} | {0}
    assert [(item["rule"], item["cause"]) for item in table if item["ordinal"] == 0] == [("labelled_bad", "prompt")]
    rows = [nt.row(n, "wrong" if n % 3 else "good", answer="Another thing altogether.") for n in range(30)]
    nt.build(night.root, rows)
    report.run(Params(), night)
    assert 2 in {item["ordinal"] for item in read_table(night.bad_cases).to_pylist()}


def test_importing_twice_adds_nothing_and_a_changed_mind_is_the_last_word(night):
    file = put(night, [{"id": "r2", "verdict": "good"}])
    label_exchange.take_in(night, file)
    held = labels_file(night).read_bytes()
    assert label_exchange.take_in(night, file) == {"read": 1, "new": 0, "already_there": 1, "unknown": 0}
    assert labels_file(night).read_bytes() == held
    label_exchange.take_in(night, put(night, [{"id": "r2", "verdict": "bad"}]))
    assert read_labels(labels_file(night))["r2", 0].verdict == "bad"
    assert [json.loads(line)["version"] for line in labels_file(night).read_text().splitlines()] == [1, 2]


@pytest.mark.parametrize(
    ("row", "word"),
    [
        ({"id": "r2", "verdict": "maybe"}, "good or bad"),
        ({"id": "r2", "verdict": "bad", "cause": "weather"}, "cause must be"),
        ({"id": "nobody", "verdict": "bad"}, "nobody"),
        ({"id": "", "verdict": "bad"}, "needs an id"),
        ({"id": "r2", "verdict": "", "corrected": "x"}, "without a verdict"),
        (["r2"], "object"),
    ],
)
def test_a_wrong_label_is_named_and_nothing_is_kept(night, row, word):
    with pytest.raises(UsageError, match=word):
        label_exchange.take_in(night, put(night, [{"id": "r0", "verdict": "good"}, row]))
    assert not labels_file(night).exists()


def test_unknown_ids_can_be_left_out_and_files_are_named(night):
    file = put(night, [{"id": "nobody", "verdict": "bad"}, {"id": "r2", "verdict": "good"}])
    assert label_exchange.take_in(night, file, skip_unknown=True)["unknown"] == 1
    with pytest.raises(MissingInput):
        label_exchange.take_in(night, night.root / "none.csv")
    (night.root / "x.csv").write_text("name,verdict\na,good\n")
    with pytest.raises(UsageError, match="columns id and verdict"):
        label_exchange.take_in(night, night.root / "x.csv")
    with pytest.raises(UsageError, match=r"jsonl or \.csv"):
        label_exchange.write_rows(night.root / "x.xls", [], ())


def test_corrected_answers_become_control_rows_and_conversations(night):
    label_exchange.take_in(night, put(night, [{"id": "r2", "verdict": "bad", "corrected": "A blue bridge, and green."}]))
    pairs = label_exchange.corrected(night)
    control = night.root / "data/control/labelled.jsonl"
    assert label_exchange.append_rows(control, label_exchange.as_control(pairs)) == 1
    assert label_exchange.append_rows(control, label_exchange.as_control(pairs)) == 0
    kept = json.loads(control.read_text())
    assert kept["id"] == "labelled:r2" and kept["reference"] == "A blue bridge, and green." and kept["text"] == nt.question(2, "en")
    assert kept["task"] == "describe"
    params = Params.model_validate({"prompt": {"system": "Be brief."}, "preprocess": {"steps": ("squeeze_whitespace",)}})
    [conversation] = fine_tuning.as_messages(pairs, params)
    assert [turn["role"] for turn in conversation["messages"]] == ["system", "user", "assistant"]
    assert conversation["messages"][1]["content"] == nt.question(2, "en")


def test_the_commands_say_what_they_did(night):
    run = CliRunner().invoke
    out = run(command, ["export", str(night.root / "a.csv"), "--root", str(night.root)])
    assert out.exit_code == 0 and "cases in" in out.output
    file = put(night, [{"id": "r2", "verdict": "bad", "corrected": "Blue."}])
    out = run(command, ["import", str(file), "--root", str(night.root)])
    assert out.exit_code == 0 and "1 new" in out.output
    out = run(command, ["export", str(night.root / "t.jsonl"), "--as", "messages", "--root", str(night.root)])
    assert out.exit_code == 0, out.output
    assert json.loads((night.root / "t.jsonl").read_text())["messages"][-1] == {"role": "assistant", "content": "Blue."}
