"""Files that evaluation reads beside the rows: word lists, phrases, schemas. The user's lie under data/assets."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

from pipeline.core.errors import MissingInput, ParamsError
from pipeline.core.params import EvaluateParams


def asset_file(name: str, assets: Path) -> Path:
    """Where a file named in params lies: below data/assets, with or without that prefix. Raises ParamsError for a way out of it."""
    file = assets / name.removeprefix("data/assets/")
    if not file.resolve().is_relative_to(assets.resolve()):
        raise ParamsError(f"{name}: lies outside data/assets; put the file there, so that a change of it is seen")
    return file


def asset_names(params: EvaluateParams) -> list[str]:
    """Names of all the files under data/assets that the params ask for."""
    names = [params.sensitive_words, params.refusals]
    for item in params.metrics if params.metrics != "auto" else ():
        for options in item.values() if isinstance(item, dict) else ():
            names.append(options.get("schema") if isinstance(options, dict) else None)
    return sorted({name for name in names if isinstance(name, str)})


def read_list(name: str | None, assets: Path, bundled: str, key: str) -> str:
    """Text of a user's file, or of the package's own when none is named. Raises MissingInput, ParamsError."""
    if name is None:
        return resources.files("pipeline.evaluation").joinpath(bundled).read_text(encoding="utf-8")
    file = asset_file(name, assets)
    try:
        return file.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise MissingInput(f"{file}: no such file; {key} names a file under data/assets") from None
    except UnicodeDecodeError as error:
        raise ParamsError(f"{file}: not UTF-8 at byte {error.start}; save it as UTF-8") from None


def read_schema(value: Any, assets: Path) -> dict[str, Any] | None:
    """A JSON schema given in place, or the name of a file under data/assets. Raises MissingInput, ParamsError."""
    where = "evaluate.metrics.json_schema.schema"
    if isinstance(value, str):
        try:
            value = json.loads(read_list(value, assets, "", where))
        except ValueError as error:
            raise ParamsError(f"{where}: {value}: not JSON: {error}") from None
    if value is not None and not isinstance(value, dict):
        raise ParamsError(f"{where}: needs a schema (a mapping) or the name of a file under data/assets, got {value!r}")
    return value
