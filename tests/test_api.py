"""`from pipeline import run, load_results`: results as tables of the libraries people already use."""

import pytest
from chains import results

from pipeline import load_results

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
