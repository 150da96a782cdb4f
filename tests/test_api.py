"""`from pipeline import run, load_results`: results as tables of the libraries people already use."""

import pytest
from chains import results

from pipeline import load_results, run
from pipeline.core.errors import UsageError

COLUMNS = ["ordinal", "id", "status", "completion", "completion_tokens"]


@pytest.mark.parametrize(
    ("library", "rows_of"),
    [
        ("pyarrow", lambda found: found.table().select(COLUMNS).to_pylist()),
        ("duckdb", lambda found: found.duckdb().order("ordinal, sample").select(*COLUMNS).to_arrow_table().to_pylist()),
        ("pandas", lambda found: found.pandas()[COLUMNS].astype(object).where(lambda frame: frame.notna(), None).to_dict("records")),
        ("polars", lambda found: found.polars().select(COLUMNS).to_dicts()),
    ],
)
def test_results_are_the_same_in_every_library(finished_run, library, rows_of):
    pytest.importorskip(library)
    expected = [{name: row[name] for name in COLUMNS} for row in results(finished_run / "out")]
    assert rows_of(load_results(finished_run / "out")) == expected
    assert {row["status"] for row in expected} == {"answered", "rejected"}


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_library_that_is_not_there_is_named_with_the_way_to_get_it(finished_run, monkeypatch, library):
    def absent(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr("pipeline.api.import_module", absent)
    with pytest.raises(UsageError, match=f"pip install {library}"):
        getattr(load_results(finished_run / "out"), library)()


def test_one_file_as_a_text_and_overrides_as_a_dict(tmp_path, monkeypatch):
    taken = []
    monkeypatch.setattr("pipeline.cli.run.run_inputs", lambda *args: taken.append(args[1:]))
    monkeypatch.setattr("pipeline.api.load_results", lambda out: out)
    run("en.jsonl", tmp_path, overrides={"generate.stop": ["a"], "generate.temperature": 0.5, "model.source": "x"})
    run([tmp_path / "a", "b"], tmp_path, overrides=["generate.temperature=0.5"])
    one, many = taken
    assert (one[0], one[3]) == (("en.jsonl",), ('generate.stop=["a"]', "generate.temperature=0.5", 'model.source="x"'))
    assert (many[0], many[3]) == ((f"{tmp_path}/a", "b"), ("generate.temperature=0.5",))


def test_results_say_what_they_are(finished_run):
    assert repr(load_results(finished_run / "out")) == f"<Results {finished_run}/out: 15 in, 12 answered, 3 rejected, 0 failed>"
