"""The chain of stages without DVC and Git: in order, each one skipped that would write what lies there already.

Stages stand above this floor: the command hands them in.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from ruamel.yaml import YAML

from pipeline.core.errors import UsageError
from pipeline.core.hashing import code_digest
from pipeline.core.manifest import (
    FORMAT,
    changed_since,
    package_versions,
    plain,
    read_json,
    read_json_or_empty,
    signed,
    write_bytes,
    write_json,
)
from pipeline.core.params import DataParams, Params
from pipeline.core.paths import Paths
from pipeline.core.telemetry import timed
from pipeline.tables.sources import find_sources

STAGES = ("model", "validate", "preprocess", "bucket", "generate", "evaluate", "gate", "report", "publish")
SCORE_STAGES = ("validate", "preprocess", "ready_answers", "evaluate", "gate", "report", "publish")
ALWAYS = frozenset({"model", "ready_answers", "gate", "report"})  # fast, and fed by files that no manifest could have known of
LOCK = "run.lock"  # the first thing in an output folder
Stage = Callable[[Params, Paths], dict[str, Any]]


def run_chain(stages: dict[str, Stage], params: Params, paths: Paths, say: Callable[[str], None]) -> list[str]:
    """Run stages in order; returns the gate's reasons where its verdict is red, else nothing."""
    for name, stage in stages.items():
        if name not in ALWAYS and up_to_date(name, params, paths):
            say(f"{name:<10} unchanged")
            continue
        with timed(paths, name):
            say(stage_line(name, stage(params, paths)))
    verdict = read_json(paths.gate_json, made_by="gate")
    return [str(reason) for reason in verdict["reasons"]] if verdict["verdict"] == "red" else []


def up_to_date(name: str, params: Params, paths: Paths) -> bool:
    """Would the stage write what lies there already? Same code, packages, params and inputs, whole outputs, no failed row."""
    folder = paths.stage_folders[name]
    manifest = read_json_or_empty(folder / "manifest.json")
    return bool(
        manifest.get("format") == FORMAT
        and manifest["stage"] == name
        and not manifest["mixed"]
        and not (name == "generate" and manifest["rows"]["failed"])  # failed rows are tried again
        and manifest["code"]["sha256"] == code_digest(f"pipeline.stages.{name}")
        and manifest["packages"] == package_versions()
        and same_params(manifest["params"], params)
        and not changed_since(manifest["inputs"], paths.root)
        and not changed_since(manifest["outputs"], folder)
        and all(file.exists() for file in _files_beside(name, paths))
    )


def same_params(recorded: dict[str, Any], params: Params) -> bool:
    """Do the key paths of a manifest's `params` hold the same values now?"""
    return all(plain(value_at(params, path)) == value for path, value in recorded.items())


def value_at(params: BaseModel, path: str) -> Any:
    """The section or value at a dotted key path; None where there is no such key."""
    value: Any = params
    for key in path.split("."):
        value = getattr(value, key, None)
    return value


def stage_line(name: str, manifest: dict[str, Any]) -> str:
    """One line for people: rows in, out, rejected, failed, and the reasons of rejects."""
    rows = manifest.get("rows")
    if not rows:
        return f"{name:<10} done"
    words = [f"{rows['into']:,} in, {rows['out']:,} out"]
    words += [f"{rows[key]:,} {key}" for key in ("rejected", "failed") if rows.get(key)]
    words += [f"MIXED: {', '.join(manifest['changed_during_run'])}"] if manifest["mixed"] else []
    reasons = [f"{reason} {count:,}" for reason, count in reject_reasons(manifest)]
    return f"{name:<10} {', '.join(words)}{': ' + ', '.join(reasons) if reasons else ''}"


def reject_reasons(manifest: dict[str, Any]) -> list[tuple[str, int]]:
    """How many rows a stage rejected for each reason, control rows too; the most frequent first."""
    parts = [manifest, manifest.get("statistics") or {}, manifest.get("control") or {}]
    found = sum((Counter(part.get("reasons") or {}) for part in parts), Counter[str]())
    return sorted(found.items(), key=lambda item: (-item[1], item[0]))


def check_out(paths: Paths, data: DataParams) -> None:
    """Raises UsageError where the outputs would replace a project's results, files of others, or the inputs themselves."""
    root = paths.root
    if root.exists() and not root.is_dir():
        raise UsageError(f"--out {root}: is a file; name a folder")
    if (root / "dvc.yaml").is_file():
        raise UsageError(f"--out {root}: is a project, its results would be replaced; name another folder, or run `pipeline night` there")
    ours = (paths.work / LOCK).is_file() or (root / "effective_params.yaml").is_file()
    if root.is_dir() and any(item != paths.work for item in root.iterdir()) and not ours:
        raise UsageError(
            f"--out {root}: holds files that no run put there, and would replace some; name a new folder: --out {root / 'answers'}"
        )
    written = [folder.resolve() for folder in (*paths.stage_folders.values(), paths.bad_cases_html.parent, paths.logs, paths.work)]
    for name in (*data.inputs, *data.control):
        if (root / name).is_dir() and root.resolve().is_relative_to((root / name).resolve()):
            raise UsageError(f"{name}: the output folder {root} lies in this input; name an --out outside of it")
    for source in find_sources(data.inputs, data.control, paths):
        if any(source.file.resolve().is_relative_to(folder) for folder in written):
            raise UsageError(f"{source.file}: lies where --out {root} is written and would be lost; move it, or name another --out")


def prepare_root(paths: Paths, params: Params, assets: Path) -> None:
    """Make an output folder ready: its effective params for the reader, and the asset files that params name."""
    write_bytes(paths.root / "effective_params.yaml", _yaml(plain(params)))
    for name in _texts(plain(params)):
        source, target = assets / name.removeprefix("data/assets/"), paths.assets / name.removeprefix("data/assets/")
        if "\n" not in name and len(name) < 256 and source.is_file() and source.absolute() != target:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)


def mark_mixed(manifest: dict[str, Any], folder: Path, changed: str) -> None:
    """Note in a manifest that has just been written what changed while its stage ran."""
    names = sorted({*manifest["changed_during_run"], changed})
    write_json(folder / "manifest.json", signed(manifest | {"mixed": True, "changed_during_run": names}))


def _files_beside(name: str, paths: Paths) -> list[Path]:
    """Outputs that lie outside a stage's folder."""
    return [paths.metrics_json, paths.plots] if name == "evaluate" else []


def _yaml(data: Any) -> bytes:
    from io import BytesIO

    out = BytesIO()
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.allow_unicode = True
    yaml.dump(data, out)
    return b"# The params this run used. Written for the reader; no command reads it.\n" + out.getvalue()


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        if value:
            yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)
