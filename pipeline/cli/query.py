"""`pipeline query`."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, TextIO

import click
import duckdb
import pyarrow.parquet as pq

from pipeline.cli.options import root_option
from pipeline.cli.terminal import shown
from pipeline.core.errors import UsageError
from pipeline.core.paths import Paths
from pipeline.tables import query as queries

FORMATS = ("table", "csv", "json", "parquet")


@click.command()
@click.argument("sql", required=False)
@root_option
@click.option("--format", "form", type=click.Choice(FORMATS), help="Default: by the ending of -o FILE, else table.")
@click.option("-o", "output", type=click.Path(path_type=Path, dir_okay=False), help="Write to a file: .csv, .json, .parquet or .txt.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="A setting of a named query. Repeatable.")
@click.option("--list", "list_all", is_flag=True, help="Show views with their columns, and the named queries.")
def query(sql: str | None, paths: Paths, form: str | None, output: Path | None, settings: tuple[str, ...], list_all: bool) -> None:
    """Ask DuckDB: SQL over the views, or the name of a query.

    \b
    Examples:
        python -m pipeline query --list
        python -m pipeline query worst --set metric=exact --set rows=5
        python -m pipeline query "SELECT status, count(*) FROM results GROUP BY status" -o /tmp/status.csv
    """
    with queries.connect(paths.work / "tmp") as con:
        if list_all:
            queries.create_views(con, paths)
            click.echo(_listing(con))
            return
        if not sql:
            raise UsageError("query: give SQL or the name of a query; --list shows both")
        chosen = dict(_pair(item) for item in settings)
        form = form or _format_of(output)
        try:
            _answer(con, paths, sql, chosen, form, output)
        except duckdb.IOException:  # a table was swapped while it was read
            con.close()
            with queries.connect(paths.work / "tmp") as again:
                _answer(again, paths, sql, chosen, form, output)


def _answer(con: duckdb.DuckDBPyConnection, paths: Paths, sql: str, settings: dict[str, str], form: str, output: Path | None) -> None:
    queries.create_views(con, paths)
    relation = queries.run_query(con, sql, settings, _lower_is_better() if sql == "worst" else ())
    if form == "parquet":
        if output is None:
            raise UsageError("query: --format parquet needs -o FILE")
        table = relation.to_arrow_table()
        pq.write_table(table, output)
        return
    text = _table(relation) if form == "table" else "".join(_csv(relation) if form == "csv" else _json(relation))
    with _target(output) as target:
        target.write(shown(text) if form == "table" or target.isatty() else text)


def _format_of(output: Path | None) -> str:
    """By the ending of the file's name."""
    ending = output.suffix.lower() if output else ".txt"
    form = {".txt": "table"}.get(ending, ending[1:])
    if form not in FORMATS or ending == ".table":
        raise UsageError(f"-o {output}: no format goes with {ending!r}; .csv (for spreadsheets), .json, .parquet, .txt, or give --format")
    return form


def _lower_is_better() -> list[str]:
    from pipeline.evaluation.metrics import METRICS

    return [name for name, metric in METRICS.items() if metric.better < 0]


def _table(relation: duckdb.DuckDBPyRelation) -> str:
    with redirect_stdout(io.StringIO()) as text:
        relation.show(max_rows=200)  # its own limit hides all but 20
    return text.getvalue()


def _csv(relation: duckdb.DuckDBPyRelation) -> Iterator[str]:
    lines: list[str] = []

    class Sink:
        def write(self, text: str) -> int:
            lines.append(text)
            return len(text)

    writer = csv.writer(Sink(), lineterminator="\n")
    writer.writerow(relation.columns)
    for batch in relation.to_arrow_reader(4096):
        for row in batch.to_pylist():
            writer.writerow(row.values())
    return iter(lines)


def _json(relation: duckdb.DuckDBPyRelation) -> Iterator[str]:
    first = True
    yield "["
    for text in queries.json_rows(relation):
        yield ("\n" if first else ",\n") + text
        first = False
    yield "\n]\n" if not first else "]\n"


@contextmanager
def _target(output: Path | None) -> Iterator[TextIO]:
    if output is None:
        yield sys.stdout
    else:
        with open(output, "w", encoding="utf-8", newline="") as handle:
            yield handle


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise UsageError(f"--set {text}: expected NAME=VALUE")
    return name, value


def _listing(con: duckdb.DuckDBPyConnection) -> str:
    lines: list[str] = ["views"]
    for view, columns in queries.describe_views(con):
        lines.append(f"  {view}: " + ", ".join(f"{name} {_short(kind)}" for name, kind in columns))
    lines.append("queries")
    for name, item in queries.QUERIES.items():
        options = "".join(f" --set {key}={value if value is not None else '...'}" for key, value in item.settings.items())
        lines.append(f"  {name}{options}: {item.about}")
    return "\n".join(lines)


def _short(kind: Any) -> str:
    text = str(kind).lower()
    return text if len(text) <= 24 else text.split("(")[0] + "(...)"
