"""Options that many commands share: --root, --params, -S, --model."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from pipeline.core.params import Params, load_params
from pipeline.core.paths import Paths


def root_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """--root DIR, given to the command as `paths`."""

    @click.option(
        "--root", type=click.Path(path_type=Path, file_okay=False), default=Path("."), help="Project or output folder (default: here)."
    )
    @wraps(command)
    def wrapper(root: Path, **kwargs: Any) -> Any:
        return command(paths=Paths(root), **kwargs)

    return wrapper


def params_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--params, -S and --model, given to the command as `params_file` and `overrides`; see read_params."""

    @click.option(
        "--params", "params_file", type=click.Path(path_type=Path), help="Params file (default: params.yaml, else built-in defaults)."
    )
    @click.option(
        "-S", "overrides", multiple=True, metavar="SECTION.KEY=VALUE", help="Override one parameter; the value is YAML. Repeatable."
    )
    @click.option("--model", metavar="SRC", help="Short for -S model.source=SRC.")
    @wraps(command)
    def wrapper(overrides: tuple[str, ...], model: str | None, **kwargs: Any) -> Any:
        extra = (f"model.source={model}",) if model else ()
        return command(overrides=(*overrides, *extra), **kwargs)

    return wrapper


def read_params(params_file: Path | None, overrides: tuple[str, ...], folder: Path) -> Params:
    """--params FILE, else FOLDER/params.yaml where there is one, else the built-in defaults; then the overrides."""
    return load_params(params_place(params_file, folder), overrides)


def params_place(params_file: Path | None, folder: Path) -> Path | None:
    """The params file that counts; None for the built-in defaults."""
    own = folder / "params.yaml"
    return params_file or (own if own.is_file() else None)
