"""A command per stage: the commands that dvc.yaml calls."""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import click

from pipeline.cli.options import params_options, read_params, root_option
from pipeline.cli.preflight import check_late_params
from pipeline.core.params import Params
from pipeline.core.paths import Paths


def run_stage(name: str, params: Params, paths: Paths) -> dict[str, Any]:
    """Import a stage's module only now, so that help never loads torch, and run it."""
    manifest: dict[str, Any] = importlib.import_module(f"pipeline.stages.{name}").run(params, paths)
    return manifest


def _profiled(paths: Paths) -> AbstractContextManager[Path]:
    from pipeline.runners.profile import profiled

    return profiled(paths)


def _command(name: str, about: str, example: str = "") -> click.Command:
    def call(paths: Paths, params_file: Path | None, overrides: tuple[str, ...], profile: bool = False) -> None:
        from pipeline.core.telemetry import timed
        from pipeline.runners.interruption import interruptible
        from pipeline.runners.local import mark_mixed, same_params, stage_line
        from pipeline.runners.lock import folder_lock

        params = read_params(params_file, overrides, paths.root)
        with interruptible(), folder_lock(paths.work / f"{name}.lock"), timed(paths, name):
            if name == "model":  # the first stage, which DVC never skips
                check_late_params(params, paths)
            with _profiled(paths) if profile else nullcontext():
                manifest = run_stage(name, params, paths)
            folder = paths.stage_folders.get(name)
            if folder and not same_params(manifest["params"], read_params(params_file, overrides, paths.root)):
                mark_mixed(manifest, folder, "params")
        module = importlib.import_module(f"pipeline.stages.{name}")
        click.echo(module.summary(manifest) if hasattr(module, "summary") else stage_line(name, manifest))

    text = f"{about}\n\n\b\nExample:\n    python -m pipeline {name}{' ' + example if example else ''}"
    return click.command(name, help=text)(root_option(params_options(call)))


model = _command("model", "Find the checkpoint, import it once where it must be, and write models/model.json.")
validate = _command("validate", "Read the input files; every record becomes a row or, with a reason, a reject.")
preprocess = _command("preprocess", "Clean the rows with the preprocessor that training and serving use.")
bucket = _command("bucket", "Apply templates, tokenise, and order prompts by length.")
generate = _command(
    "generate", "Answer every prompt; what the store answered before is not generated again.", "-S generate.temperature=0.7"
)
click.option("--profile", is_flag=True, help="Also write reports/runs/profile: PyTorch's trace, and what took the time.")(generate)
evaluate = _command("evaluate", "Score the answers.")
gate = _command("gate", "Judge the scores by limits and by the accepted baseline; exits 0 whatever the verdict.")
report = _command("report", "Find the bad cases, their causes and patterns, and write the report.")
publish = _command("publish", "Join everything into data/results with its manifest.")
