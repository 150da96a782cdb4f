"""`pipeline run` and `pipeline score`: the chain on any files, without DVC or Git."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import click

from pipeline.cli.options import params_options, params_place, read_params
from pipeline.cli.preflight import check_late_params
from pipeline.cli.stages import run_stage
from pipeline.core.errors import GateRed, MissingInput, UsageError
from pipeline.core.params import Params
from pipeline.core.paths import Paths


def _inputs_and_out(command: Callable[..., Any]) -> Callable[..., Any]:
    about = "Folder for everything that comes out: new, empty, or of an earlier run."
    command = click.option("--out", required=True, type=click.Path(), help=about)(command)
    return click.argument("inputs", nargs=-1, required=True)(command)


@click.command()
@_inputs_and_out
@params_options
def run(inputs: tuple[str, ...], out: str, params_file: Path | None, overrides: tuple[str, ...]) -> None:
    """Rows in; answers, scores, a bad-case report and a manifest out, under --out.

    INPUT is a file, a folder or a quoted glob. The same command again goes on where it stopped; answers that are in
    the folder's store are not generated again. Exit code 1: all is written, but the gate is red.

    \b
    Example:
        python -m pipeline run questions.jsonl --out /tmp/answers -S generate.max_new_tokens=64
    """
    from pipeline.runners.local import STAGES

    run_inputs(STAGES, inputs, out, params_file, overrides)


@click.command()
@_inputs_and_out
@params_options
def score(inputs: tuple[str, ...], out: str, params_file: Path | None, overrides: tuple[str, ...]) -> None:
    """Evaluate, gate, report and publish answers made elsewhere; no model is loaded.

    The answers lie in the rows themselves, in the field data.completion_field. Exit code 1: the gate is red.

    \b
    Example:
        python -m pipeline score answered.jsonl --out /tmp/scores -S data.completion_field=answer
    """
    from pipeline.runners.local import SCORE_STAGES

    run_inputs(SCORE_STAGES, inputs, out, params_file, overrides)


def run_inputs(names: Iterable[str], inputs: tuple[str, ...], out: str, params_file: Path | None, overrides: tuple[str, ...]) -> None:
    """Run the named stages over files into `out`. Raises GateRed after everything is written."""
    from pipeline.runners.interruption import interruptible
    from pipeline.runners.local import LOCK, check_out, prepare_root, run_chain
    from pipeline.runners.lock import folder_lock
    from pipeline.runners.run_record import recorded
    from pipeline.runners.summary import summary_lines

    params = _with_inputs(read_params(params_file, overrides, Path.cwd()), inputs, overrides)
    if "model" not in names and params.data.completion_field is None:
        raise UsageError("score: say which field holds the answers: -S data.completion_field=FIELD")
    if not out:
        raise UsageError("--out: is empty; name a folder")
    paths = Paths(Path(out), imports=_imports(Path(out)))
    check_out(paths, params.data)
    command = "run" if "generate" in names else "score"
    click.echo(f"params: {params_place(params_file, Path.cwd()) or 'built-in defaults'}{', with -S' * bool(overrides)}", err=True)
    with interruptible(), folder_lock(paths.work / LOCK), recorded(paths, command):
        prepare_root(paths, params, Path.cwd() / "data/assets")
        check_late_params(params, paths)
        red = run_chain({name: partial(run_stage, name) for name in names}, params, paths, partial(click.echo, err=True))
        click.echo("\n".join(summary_lines(paths)))
        if red:
            raise GateRed(f"the gate is red: {'; '.join(red)}")


def _with_inputs(params: Params, inputs: tuple[str, ...], overrides: tuple[str, ...]) -> Params:
    """The named inputs instead of data.inputs. A control set is used only when this very command names one."""
    missing = [name for name in inputs if not Path(name).exists() and not any(mark in name for mark in "*?[")]
    if missing:
        raise MissingInput(f"{missing[0]}: no such file or folder; INPUT is a file, a folder or a quoted glob")
    control = params.data.control if any(item.startswith("data.control=") for item in overrides) else ()
    chosen = {"inputs": tuple(_absolute(name) for name in inputs), "control": tuple(_absolute(name) for name in control)}
    return params.model_copy(update={"data": params.data.model_copy(update=chosen)})


def _absolute(name: str) -> str:
    return (Path.cwd() / name).as_posix()


def _imports(out: Path) -> Path:
    """Imported checkpoints go to the project's models/ where we stand in one, else below the output folder."""
    return (Path.cwd() if Path("dvc.yaml").is_file() else out.absolute()) / "models"
