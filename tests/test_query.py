"""`pipeline query`: SQL over the views, named queries, formats."""

import csv
import io
import json
import shutil

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chains import pipeline, results, rows, run_chain, write_rows

from pipeline.api import load_results
from pipeline.core.paths import Paths
from pipeline.tables.query import QUERIES, connect, create_views

VIEWS = {"validated", "clean", "prompts", "completions", "scores", "bad_cases", "rejected", "results", "runs"}


def query(root, *args, capsys):
    capsys.readouterr()
    assert pipeline("query", *args, "--root", root) == 0
    return capsys.readouterr().out


def copied(finished_run, tmp_path):
    return shutil.copytree(finished_run / "out", tmp_path / "out", symlinks=True)


def change_scores(root, change):
    file = root / "data/scores/rows.parquet"
    table = pq.read_table(file)
    pq.write_table(pa.Table.from_pylist([change(row) for row in table.to_pylist()], table.schema), file)


def test_sql_over_all_views_as_json(finished_run, capsys):
    root = finished_run / "out"
    sql = "SELECT r.id, s.metric, s.value FROM scores s JOIN results r USING (ordinal) WHERE s.metric = 'exact' ORDER BY r.ordinal"
    found = json.loads(query(root, sql, "--format", "json", capsys=capsys))
    assert found[0] == {"id": "r0", "metric": "exact", "value": 0.0}
    assert json.loads(query(root, "SELECT count(*) AS n FROM rejected", "--format", "json", capsys=capsys)) == [{"n": 3}]
    assert json.loads(query(root, "SELECT 1 AS a WHERE false", "--format", "json", capsys=capsys)) == []
    assert json.loads(query(root, "SELECT 'nan'::DOUBLE AS a", "--format", "json", capsys=capsys)) == [{"a": None}]


@pytest.mark.parametrize("name", QUERIES)
def test_every_named_query_runs(finished_run, capsys, name):
    rows = list(csv.DictReader(io.StringIO(query(finished_run / "out", name, "--format", "csv", capsys=capsys))))
    assert rows or name in ("failures",)


def test_a_setting_of_a_named_query(finished_run, capsys):
    out = query(finished_run / "out", "worst", "--set", "metric=rouge_l", "--set", "rows=3", "--format", "json", capsys=capsys)
    assert [row["metric"] for row in json.loads(out)] == ["rouge_l"] * 3


def test_a_table_of_up_to_200_rows_is_shown_whole(finished_run, capsys):
    out = query(finished_run / "out", "select 'row' || range as name from range(200)", capsys=capsys)
    assert all(f" row{n} " in out for n in range(200))
    assert "(200 shown)" in query(finished_run / "out", "select range as n from range(1000)", capsys=capsys)


def test_parquet_and_files(finished_run, tmp_path, capsys):
    root = finished_run / "out"
    query(root, "SELECT id, 1.5 AS x FROM results", "--format", "parquet", "-o", tmp_path / "x.parquet", capsys=capsys)
    assert pq.read_table(tmp_path / "x.parquet").num_rows == 15
    query(root, "SELECT 'a,\"b' AS x", "--format", "csv", "-o", tmp_path / "x.csv", capsys=capsys)
    assert (tmp_path / "x.csv").read_text() == 'x\n"a,""b"\n'
    assert pipeline("query", "SELECT 1", "--format", "parquet", "--root", root) == 2


def test_the_list_shows_views_columns_and_queries(finished_run, capsys):
    text = query(finished_run / "out", "--list", capsys=capsys)
    assert all(f"  {view}: " in text for view in VIEWS)
    assert all(f"  {name}" in text for name in QUERIES)


def test_the_worst_rows_are_those_with_most_of_what_is_bad(finished_run, tmp_path, capsys):
    root = copied(finished_run, tmp_path)
    change_scores(root, lambda row: row | {"value": float(row["ordinal"])})
    for metric, wanted in (("repetition", [11, 10]), ("rouge_l", [0, 1])):
        out = query(root, "worst", "--set", f"metric={metric}", "--set", "rows=2", "--format", "json", capsys=capsys)
        assert [row["ordinal"] for row in json.loads(out)] == wanted
    assert pipeline("query", "worst", "--set", "metric=rouge_k", "--root", root) == 2
    assert "--set metric=rouge_k: nothing was scored by it; did you mean rouge_" in capsys.readouterr().err


@pytest.mark.parametrize("ending", ["csv", "json", "parquet", "txt", "xlsx", "table", ""])
def test_the_ending_of_the_file_is_its_format(finished_run, tmp_path, capsys, ending):
    file = tmp_path / f"x.{ending}".rstrip(".")
    known = {"csv": b"a\n1\n", "json": b'[\n{"a": 1}\n]\n', "parquet": b"PAR1", "txt": "┌".encode()}
    code = pipeline("query", "SELECT 1 AS a", "-o", file, "--root", finished_run / "out")
    if ending in known:
        assert code == 0 and file.read_bytes().startswith(known[ending])
    else:
        assert code == 2 and not file.exists()
        assert "give --format" in capsys.readouterr().err


def test_control_characters_of_rows_are_shown_and_not_obeyed(finished_run, tmp_path, capsys):
    text = query(finished_run / "out", r"SELECT 'a' || chr(27) || '[31m' || chr(8238) AS x", capsys=capsys)
    assert r"[31m\u202e" in text and "\x1b" not in text
    query(finished_run / "out", "SELECT 'a' || chr(27) AS x", "-o", tmp_path / "x.csv", capsys=capsys)
    assert (tmp_path / "x.csv").read_bytes() == b"x\na\x1b\n"


@pytest.mark.parametrize("args", [("SELECT nothing FROM results",), ("wrst",), ("worst", "--set", "colour=red"), ()])
def test_what_cannot_be_asked_is_said(finished_run, capsys, args):
    assert pipeline("query", *args, "--root", finished_run / "out") == 2
    assert "error: " in capsys.readouterr().err


def test_views_of_an_empty_root_are_empty(tmp_path):
    with connect() as con:
        create_views(con, Paths(tmp_path))
        for view in VIEWS:
            assert con.execute(f"SELECT count(*) FROM {view}").fetchone() == (0,)


def test_the_plain_duckdb_line_reads_the_results(finished_run):
    count = duckdb.sql(f"SELECT count(*) FROM read_parquet('{finished_run}/out/data/results/*.parquet')").fetchall()
    assert count == [(15,)]


@pytest.mark.parametrize("name", ["g[1]", "h*", "q?"])
def test_a_folder_whose_name_looks_like_a_pattern_is_itself(tiny_checkpoint, tmp_path, capsys, name):
    other = tmp_path / {"g[1]": "g1", "h*": "hers", "q?": "q1"}[name]
    assert run_chain(write_rows(tmp_path / "b.jsonl", rows(5, start=50)), other, tiny_checkpoint) == 0
    own, file = tmp_path / name, write_rows(tmp_path / "a.jsonl", rows(3))
    for _ in range(2):  # the second time all answers come from the store
        assert run_chain(file, own, tiny_checkpoint) == 0
        (own / "data/completions/manifest.json").unlink()
    assert run_chain(file, own, tiny_checkpoint) == 0
    assert [row["id"] for row in results(own)] == ["r0", "r1", "r2"]
    assert [row[0] for row in load_results(own).duckdb().project("id").fetchall()] == ["r0", "r1", "r2"]
    assert json.loads(query(own, "SELECT count(*) AS n FROM runs", "--format", "json", capsys=capsys)) == [{"n": 3}]


def test_publish_refuses_tables_of_different_runs(finished_run, tmp_path, capsys):
    root = copied(finished_run, tmp_path)
    manifest = root / "data/validated/manifest.json"
    data = json.loads(manifest.read_text())
    data["statistics"]["rows"] += 1
    manifest.write_text(json.dumps(data))
    before = (root / "data/results/manifest.json").read_bytes()
    assert pipeline("publish", "--root", root) == 5
    assert "15 input rows would be published, but validate read 16" in capsys.readouterr().err
    assert (root / "data/results/manifest.json").read_bytes() == before
