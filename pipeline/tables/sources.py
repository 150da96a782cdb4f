"""Which files data.inputs and data.control name, and whether something keeps their bytes."""

from __future__ import annotations

import glob
import os
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pipeline.core.errors import MissingInput, UsageError
from pipeline.core.paths import Paths

NO_DATA = (".dvc", ".md", ".gitignore", ".gitkeep", ".gitattributes")


@dataclass(frozen=True)
class Source:
    """One input file and its name in tables and manifests."""

    file: Path
    name: str
    control: bool


def find_sources(inputs: Iterable[str], control: Iterable[str], paths: Paths) -> list[Source]:
    """Files in the order named, a glob's or folder's files sorted, inputs before control rows, each file once.

    Raises MissingInput for a name that leads nowhere; a control glob may match nothing.
    """
    found: dict[Path, Source] = {}
    for pattern in inputs:
        for file in _expand(pattern, paths.root, required=True):
            found.setdefault(file, Source(file, paths.relative(file), False))
    for pattern in control:
        for file in _expand(pattern, paths.root, required=not glob.has_magic(pattern)):
            found.setdefault(file, Source(file, paths.relative(file), True))
    return list(found.values())


def refuse_outside_data(sources: Iterable[Source], paths: Paths) -> None:
    """Under DVC a stage may read only what dvc.yaml names as its dependencies. Raises UsageError."""
    if not (os.environ.get("DVC_STAGE") or os.environ.get("DVC_ROOT")):
        return
    for source in sources:
        if not source.file.is_relative_to(paths.root / "data"):
            raise UsageError(
                f"{source.name}: lies outside data/, where DVC cannot see it change; copy or link it into data/raw and "
                f"`dvc add` it there, or run it without DVC: pipeline run {source.name} --out DIR"
            )


def not_kept(sources: Iterable[Source]) -> list[Source]:
    """Files whose bytes neither Git nor DVC keeps: a hash in a manifest could never bring them back."""
    return [source for source in sources if not (_kept_by_dvc(source.file) or _kept_by_git(source.file))]


def _expand(pattern: str, root: Path, required: bool) -> list[Path]:
    place = root / pattern
    if place.is_file():
        return [place]
    found = place.rglob("*") if place.is_dir() else map(Path, glob.glob(str(place), recursive=True))
    files = _data_files(found)
    if not files and required:
        pointer = place.with_name(place.name + ".dvc")
        hint = (
            f"only its pointer {pointer.name} is there: run `dvc pull` or `dvc checkout`" if pointer.is_file() else "data.inputs names it"
        )
        raise MissingInput(f"{pattern}: no such file below {root} and no glob that matches one; {hint}")
    return files


def _data_files(files: Iterable[Path]) -> list[Path]:
    return sorted(file for file in files if file.is_file() and not file.name.startswith(".") and not file.name.endswith(NO_DATA))


def _kept_by_dvc(file: Path) -> bool:
    return any(place.with_name(place.name + ".dvc").is_file() for place in (file, *file.parents) if place.name)


def _kept_by_git(file: Path) -> bool:
    command = ["git", "-C", str(file.parent), "ls-files", "--error-unmatch", "--", file.name]
    try:
        return subprocess.run(command, capture_output=True, timeout=20, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
