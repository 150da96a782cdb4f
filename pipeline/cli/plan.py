"""Before the night: what it will cost."""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from pipeline.cli.options import params_options, read_params
from pipeline.cli.stages import run_stage
from pipeline.core.params import Params
from pipeline.core.paths import Paths


@click.command()
@click.argument("inputs", nargs=-1, type=click.Path(path_type=Path))
@params_options
@click.option("--seconds", default=5.0, show_default=True, help="Length of the calibration, about.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def plan(inputs: tuple[Path, ...], params_file: Path | None, overrides: tuple[str, ...], seconds: float, as_json: bool) -> None:
    """What a night over INPUT... (default: data.inputs) will cost: rows, tokens, padding, memory, time.

    \b
    Example:
        python -m pipeline plan data/raw/sample.en.jsonl
    """
    from pipeline.runners.dvc_graph import affected_by, changed_now
    from pipeline.runners.plan import forecast

    here = Paths(Path("."))
    params = read_params(params_file, overrides, here.root)
    if inputs:
        named = tuple(str(file.absolute()) for file in inputs)
        params = params.model_copy(update={"data": params.data.model_copy(update={"inputs": named, "control": ()})})
    with tempfile.TemporaryDirectory(prefix="pipeline-plan-") as folder:
        paths = Paths(Path(folder), imports=here.model_imports)
        stages = prepare(params, paths, here)
        told = asdict(forecast(paths, params, project=here, budget_s=seconds))
    told["time"] |= stages
    if (here.root / "dvc.yaml").is_file():
        told["dvc repro would run"] = changed_now(here)
    if overrides and (here.root / "dvc.yaml").is_file():
        told["after your -S"] = affected_by([item.partition("=")[0] for item in overrides], here.root / "dvc.yaml")
    if as_json:
        click.echo(json.dumps(told, indent=2, ensure_ascii=False))
    else:
        for line in lines(told):
            click.echo(line)


def prepare(params: Params, paths: Paths, here: Paths) -> dict[str, float]:
    """Run the stages up to the prompts below `paths`; seconds by stage."""
    data = params.data
    absolute = {name: tuple(str(here.root / item) for item in getattr(data, name)) for name in ("inputs", "control")}
    params = params.model_copy(update={"data": data.model_copy(update=absolute)})
    if here.assets.is_dir():
        paths.assets.parent.mkdir(parents=True)
        paths.assets.symlink_to(here.assets)
    spent = {}
    for stage in ("model", "validate", "preprocess", "bucket"):
        start = time.perf_counter()
        run_stage(stage, params, paths)
        spent[f"{stage}_s"] = round(time.perf_counter() - start, 1)
    return spent


def lines(told: dict[str, Any]) -> list[str]:
    """A plan for people, one line per group."""
    out = []
    for group in ("rows", "tokens", "padding", "memory", "store", "time"):
        words = ", ".join(f"{label(name)} {figure(group, name, value)}" for name, value in told[group].items())
        out.append(f"{group:<8} {words}")
    if told["never_fit"]:
        out.append(f"too long {', '.join(told['never_fit'])}")
    for name in ("dvc repro would run", "after your -S"):
        if told.get(name) is not None:
            out.append(f"{name}: {', '.join(told[name]) or 'nothing but the model check'}")
    return out


def label(name: str) -> str:
    """A figure's name as it is told."""
    return name.replace("_per_s", "/s").removesuffix("_s").replace("_", " ")


def figure(group: str, name: str, value: float) -> str:
    """A number with its unit."""
    if group == "padding":
        return f"{value:.1%}"
    if group == "memory" and "rows" not in name:
        return f"{value / 1024**2:,.1f} MiB" if value >= 1024**2 else f"{value / 1024:,.1f} KiB"
    return f"{value:,}{' s' if name.endswith('_s') and 'per' not in name else ''}"
