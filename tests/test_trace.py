"""`pipeline trace`: one row's life on a screen, and again alone."""

import json
import shutil

import pyarrow.parquet as pq
from chains import pipeline, run_chain, write_rows

from pipeline.core import schemas
from pipeline.core.manifest import table_files
from pipeline.runners.trace import Life, as_text


def test_an_answered_row_shows_its_whole_life(finished_run, capsys):
    assert pipeline("trace", "r5", "--root", finished_run / "out") == 0
    text = capsys.readouterr().out
    for word in (
        "r5",
        "in.jsonl:6",
        "cleaned",
        "fingerprint",
        "prompt",
        "bucket",
        "weights",
        "max_new_tokens 8",
        "answer",
        "scores",
        "exact",
    ):
        assert word in text


def test_what_cleaning_changed_is_shown_with_its_offsets():
    row = {"chars_in": 20, "chars_out": 17, "language": "en", "steps_applied": ["fix_mojibake"], "text": "The café is open."}
    life = Life(0, {"text": "The cafÃ© is   open."}, row, None, [], [], [], [])
    assert as_text(life, {})[-2:] == ["  7:9 to 7:8   '\\xc3\\xa9' to '\\xe9'", "  12:14 to 11:11   '  ' to ''"]


def test_a_rejected_row_says_why_and_its_place_finds_it(finished_run, capsys):
    source = next((finished_run / "out/data/validated").glob("rejected.parquet"))
    row = pq.read_table(source).to_pylist()[-1]
    assert pipeline("trace", f"{row['source_file']}:{row['source_line']}", "--root", finished_run / "out") == 0
    assert f"REJECTED      by validate: {row['reason']}" in capsys.readouterr().out


def test_an_unknown_id_is_refused_with_a_near_one(finished_run, capsys):
    assert pipeline("trace", "r55", "--root", finished_run / "out") == 2
    assert "did you mean r5?" in capsys.readouterr().err


def test_replay_gives_the_same_tokens(finished_run, capsys):
    assert pipeline("trace", "r5", "--root", finished_run / "out", "--replay") == 0
    assert "8 tokens, all equal; largest logprob difference 0\n" in capsys.readouterr().out


def test_replay_finds_an_answer_that_does_not_come_out_again(finished_run, tmp_path, capsys):
    shutil.copytree(finished_run / "out", tmp_path / "out")
    (file,) = table_files(tmp_path / "out/data/completions", "part")
    table = pq.read_table(file)
    answers = table["token_ids"].to_pylist()
    answers[5][3] += 1
    import pyarrow as pa

    changed = table.set_column(table.schema.get_field_index("token_ids"), "token_ids", pa.array(answers, schemas.TOKEN_IDS))
    pq.write_table(changed, file)
    assert pipeline("trace", "r5", "--root", tmp_path / "out", "--replay", "--json") == 5
    replay = json.loads(capsys.readouterr().out)["replay"]
    assert [(item["equal"], item["first_divergence"]) for item in replay] == [(False, 3)]


def test_terminal_codes_in_a_row_are_shown_and_not_obeyed(tmp_path, tiny_checkpoint, capsys):
    file = write_rows(tmp_path / "in.jsonl", [{"id": "x", "text": "see \x1b[2J\u202e\u0085 this", "note": "\x9b2J"}])
    assert run_chain(file, tmp_path / "out", tiny_checkpoint, tokens=2) == 0
    capsys.readouterr()
    assert pipeline("trace", "x", "--root", tmp_path / "out") == 0
    out = capsys.readouterr().out
    assert r"| see \u001b[2J\u202e\u0085 this" in out
    assert not set(out) & set("\x1b\x9b\u202e\u0085")
