"""Where the checkpoint of a finished run lies now, without importing anything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pipeline.core.errors import PipelineError
from pipeline.core.manifest import read_json
from pipeline.core.paths import Paths
from pipeline.model.source import find_checkpoint


def with_imports(paths: Paths) -> Paths:
    """Imported checkpoints are shared: those of the project we stand in, where we stand in one, else below the root."""
    if paths.imports is None and not (paths.root / "models").is_dir() and Path("dvc.yaml").is_file():
        return replace(paths, imports=Path.cwd() / "models")
    return paths


def present_checkpoint(paths: Paths) -> Path | None:
    """The folder that model.json's weights lie in; None when it is not on this machine or there is no model.json."""
    if not paths.model_json.is_file():
        return None
    try:
        return find_checkpoint(read_json(paths.model_json, made_by="model")["source"], with_imports(paths))
    except PipelineError:
        return None
