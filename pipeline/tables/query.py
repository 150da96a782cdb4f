"""DuckDB over a root's tables: one view per table, and questions people ask by name.

A view lists the files that the folder's manifest names; a table that is not there yet is an empty view.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from pipeline.core import schemas
from pipeline.core.errors import MissingInput, UsageError
from pipeline.core.manifest import table_files
from pipeline.core.paths import Paths

MEMORY = "2GB"


@dataclass(frozen=True)
class NamedQuery:
    """A question with a name. `settings` are SQL variables with their defaults, changed by --set NAME=VALUE."""

    about: str
    sql: str
    settings: dict[str, str | None]


QUERIES: dict[str, NamedQuery] = {
    "worst": NamedQuery(
        "the rows that a metric likes least",
        "SELECT r.ordinal, r.id, s.sample, s.metric, s.value, r.completion, r.reference "
        "FROM scores s JOIN results r USING (ordinal, sample) WHERE s.value IS NOT NULL "
        "AND s.metric = coalesce(getvariable('metric'), (SELECT min(metric) FROM scores WHERE value IS NOT NULL)) "
        "ORDER BY CASE WHEN list_contains(getvariable('lower_is_better'), s.metric) THEN -s.value ELSE s.value END, r.ordinal, s.sample "
        "LIMIT getvariable('rows')::BIGINT",
        {"metric": None, "rows": "20"},
    ),
    "slices": NamedQuery(
        "the mean of each metric by the values of a field of meta",
        "SELECT json_extract_string(v.meta, '$.\"' || getvariable('field') || '\"') AS slice, s.metric, avg(s.value) AS mean, "
        "count(s.value) AS n_valid FROM scores s JOIN validated v USING (ordinal) WHERE NOT v.control "
        "GROUP BY ALL HAVING n_valid > 0 ORDER BY slice, s.metric",
        {"field": "task"},
    ),
    "rejects": NamedQuery(
        "why rows were rejected, by stage",
        "SELECT stage, reason, count(*) AS n_rows, min(id) AS example_id, min(detail) AS example FROM rejected "
        "GROUP BY ALL ORDER BY n_rows DESC, stage, reason",
        {},
    ),
    "failures": NamedQuery(
        "why rows failed",
        "SELECT split_part(error, ':', 1) AS code, count(*) AS n_rows, min(ordinal) AS example_ordinal, min(error) AS example "
        "FROM completions WHERE error IS NOT NULL GROUP BY ALL ORDER BY n_rows DESC, code",
        {},
    ),
    "lengths": NamedQuery(
        "how long prompts and answers are, in tokens",
        "SELECT what, count(*) AS n_rows, min(n) AS min, quantile_disc(n, 0.5) AS p50, quantile_disc(n, 0.9) AS p90, "
        "quantile_disc(n, 0.99) AS p99, max(n) AS max FROM (SELECT 'prompt' AS what, prompt_tokens AS n FROM prompts "
        "UNION ALL SELECT 'answer', completion_tokens FROM completions WHERE error IS NULL) GROUP BY what ORDER BY what DESC",
        {},
    ),
    "buckets": NamedQuery(
        "rows and tokens by bucket, and the share of padding",
        "SELECT p.bucket, count(DISTINCT p.ordinal) AS n_rows, sum(p.prompt_tokens) AS prompt_tokens, "
        "sum(c.completion_tokens) AS completion_tokens, 1 - avg(p.prompt_tokens / p.bucket) AS padding "
        "FROM prompts p LEFT JOIN completions c USING (ordinal) GROUP BY p.bucket ORDER BY p.bucket",
        {},
    ),
    "finish": NamedQuery(
        "how answers ended",
        "SELECT finish_reason, finish_detail, count(*) AS n_rows FROM completions "
        "GROUP BY ALL ORDER BY n_rows DESC, finish_reason, finish_detail",
        {},
    ),
}


@contextmanager
def connect(temporary: Path | None = None) -> Iterator[duckdb.DuckDBPyConnection]:
    """An in-memory connection with bounded memory; sorts and joins spill to `temporary`, else nowhere."""
    con = duckdb.connect(config={"memory_limit": MEMORY, "temp_directory": str(temporary) if temporary else ""})
    try:
        yield con
    finally:
        con.close()


def sql_text(value: str) -> str:
    """A string literal."""
    return "'" + value.replace("'", "''") + "'"


def exact_name(file: Path) -> str:
    """A file's name as DuckDB reads it without taking its brackets, stars and question marks for a pattern."""
    return re.sub(r"([\[*?])", r"[\1]", str(file))


def file_list(files: Iterable[Path]) -> str:
    """A list of exactly these files, for read_parquet and read_json."""
    return f"[{', '.join(sql_text(exact_name(file)) for file in files)}]"


def create_views(con: duckdb.DuckDBPyConnection, paths: Paths) -> None:
    """validated, clean, prompts, completions, scores, bad_cases, rejected, results and runs."""
    tables = {
        "validated": (paths.validated, schemas.VALIDATED), "clean": (paths.clean, schemas.CLEAN),
        "prompts": (paths.prompts, schemas.PROMPTS), "completions": (paths.completions, schemas.COMPLETIONS),
        "scores": (paths.scores, schemas.SCORES), "bad_cases": (paths.bad_cases, schemas.BAD_CASES),
        "results": (paths.results, schemas.results_schema([])),
    }  # fmt: skip
    for name, (folder, schema) in tables.items():
        _view(con, name, _files(folder, "part" if name in ("completions", "results") else "rows"), schema)
    rejected = [file for folder in (paths.validated, paths.clean, paths.prompts) for file in _files(folder, "rejected")]
    _view(con, "rejected", rejected, schemas.REJECTED)
    runs = sorted(paths.runs.glob("*/run.json"))
    known = f"read_json({file_list(runs)}, union_by_name = true, filename = true)"
    source = known if runs else "(SELECT NULL::VARCHAR AS filename WHERE false)"
    con.execute(f"CREATE VIEW runs AS SELECT * FROM {source}")


def run_query(
    con: duckdb.DuckDBPyConnection, sql: str, settings: dict[str, str], lower_is_better: Iterable[str] = ()
) -> duckdb.DuckDBPyRelation:
    """A relation for SQL or the name of a query. Raises UsageError with DuckDB's own words, or for an unknown setting.

    lower_is_better: metrics whose high values are the bad ones.
    """
    known: dict[str, str | None] = {}
    if sql in QUERIES:
        known, sql = QUERIES[sql].settings, QUERIES[sql].sql
    elif sql.strip().isidentifier():
        raise UsageError(f"no query is named {sql!r}; known: {', '.join(QUERIES)}; or give SQL")
    if unknown := sorted(set(settings) - set(known)):
        raise UsageError(f"--set {unknown[0]}: this query has no such setting; it has: {', '.join(known) or 'none'}")
    if "metric" in known and "metric" in settings:
        _check_metric(con, settings["metric"])
    con.execute(f"SET VARIABLE lower_is_better = [{', '.join(map(sql_text, lower_is_better))}]::VARCHAR[]")
    for name, value in (known | settings).items():
        con.execute(f"SET VARIABLE {name} = {sql_text(value) if value is not None else 'NULL'}")
    try:
        relation = con.sql(sql)
    except duckdb.IOException:
        raise
    except duckdb.Error as error:
        raise UsageError(f"query: {error}; `pipeline query --list` shows views and columns") from None
    return relation if relation is not None else con.sql("SELECT 'done' AS result")


def _check_metric(con: duckdb.DuckDBPyConnection, wanted: str) -> None:
    names = [name for (name,) in con.execute("SELECT DISTINCT metric FROM scores ORDER BY metric").fetchall()]
    if wanted not in names:
        near = difflib.get_close_matches(wanted, names, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UsageError(f"--set metric={wanted}: nothing was scored by it; {hint}scored: {', '.join(names) or 'nothing yet'}")


def describe_views(con: duckdb.DuckDBPyConnection) -> list[tuple[str, list[tuple[str, str]]]]:
    """(view, [(column, type)]) for every view."""
    rows = con.execute(
        "SELECT table_name, column_name, data_type FROM duckdb_columns() WHERE NOT internal ORDER BY table_name, column_index"
    ).fetchall()
    views: dict[str, list[tuple[str, str]]] = {}
    for view, column, kind in rows:
        views.setdefault(view, []).append((column, kind))
    return list(views.items())


def json_rows(relation: duckdb.DuckDBPyRelation) -> Iterator[str]:
    """Each row as a JSON object; NaN and infinities become null, dates and decimals text."""
    for batch in relation.to_arrow_reader(4096):
        for row in batch.to_pylist():
            yield json.dumps(_finite(row), ensure_ascii=False, default=str)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list) else value


def _view(con: duckdb.DuckDBPyConnection, name: str, files: list[Path], schema: pa.Schema) -> None:
    if files:
        con.execute(f"CREATE VIEW {name} AS SELECT * FROM read_parquet({file_list(files)})")
    else:
        con.register(f"empty_{name}", schema.empty_table())
        con.execute(f"CREATE VIEW {name} AS SELECT * FROM empty_{name}")


def _files(folder: Path, name: str) -> list[Path]:
    try:
        return table_files(folder, name)
    except MissingInput:
        return []
