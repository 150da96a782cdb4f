"""The pipeline in a notebook: `from pipeline import run, load_results`. Names are loaded when they are first used."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.core.errors import GateRed, UsageError
from pipeline.core.manifest import read_json, read_manifest, table_files
from pipeline.core.paths import Paths
from pipeline.tables.query import exact_name

Place = str | PathLike[str]


class Results:
    """What a run left in its folder. Tables are read when they are asked for; text columns are not copied."""

    def __init__(self, root: Place) -> None:
        self.paths = Paths(Path(root))
        self.manifest: dict[str, Any] = read_manifest(self.paths.results)

    @property
    def metrics(self) -> dict[str, Any]:
        """reports/metrics.json: metrics, control, slices, rows."""
        return read_json(self.paths.metrics_json, made_by="evaluate")

    @property
    def verdict(self) -> str:
        """The gate's: green or red."""
        return str(read_json(self.paths.gate_json, made_by="gate")["verdict"])

    def table(self) -> pa.Table:
        """One line per input row and sample, in order of arrival."""
        return pa.concat_tables([pq.read_table(file, memory_map=True) for file in table_files(self.paths.results, "part")])

    def duckdb(self) -> duckdb.DuckDBPyRelation:
        """The results as a DuckDB relation over the files, nothing loaded."""
        return duckdb.read_parquet([exact_name(file) for file in table_files(self.paths.results, "part")])

    def pandas(self) -> Any:
        """A pandas data frame with Arrow-backed columns, no copy. Raises UsageError without pandas."""
        return self.table().to_pandas(types_mapper=_library("pandas").ArrowDtype)

    def polars(self) -> Any:
        """A polars data frame, no copy. Raises UsageError without polars."""
        return _library("polars").from_arrow(self.table())

    def __repr__(self) -> str:
        rows = self.manifest["rows"]
        return (
            f"<Results {self.paths.root}: {rows['into']:,} in, {rows['out']:,} answered, {rows['rejected']:,} rejected, "
            f"{rows['failed']:,} failed>"
        )


def run(
    inputs: Place | Iterable[Place], out: Place, *, params: Place | None = None, overrides: Mapping[str, Any] | Iterable[str] = ()
) -> Results:
    """`pipeline run`: answer the rows of files and return the results; repeated, it goes on or does nothing.

    inputs: one file, folder or glob, or several. overrides: as after -S, ["generate.temperature=0.7"], or a dict,
    {"generate.temperature": 0.7}. A red gate does not raise: look at `verdict`. Raises PipelineError.
    """
    from pipeline.cli.run import run_inputs
    from pipeline.runners.local import STAGES

    names = tuple(map(str, [inputs] if isinstance(inputs, str | PathLike) else inputs))
    if isinstance(overrides, Mapping):
        overrides = [f"{key}={json.dumps(value)}" for key, value in overrides.items()]
    elif isinstance(overrides, str):
        overrides = [overrides]
    try:
        run_inputs(STAGES, names, str(out), Path(params) if params else None, tuple(overrides))
    except GateRed:
        pass
    return load_results(out)


def load_results(root: Place) -> Results:
    """The results below a project or an output folder. Raises MissingInput where nothing was published."""
    return Results(root)


def _library(name: str) -> Any:
    """A library that the pipeline does not depend on; a notebook that asks for it has it, or is told how to get it."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise UsageError(f"results.{name}() needs {name}, which the pipeline does not install: pip install {name}") from None
