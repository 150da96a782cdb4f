"""Which files data.inputs and data.control name, and whether something keeps their bytes."""

from __future__ import annotations

import glob
import os
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pipeline.core.errors import MissingInput, UsageError
from pipeline.core.paths import Paths, check_name

NO_DATA = (".dvc", ".md")  # left out of folders and globs, as hidden files are


@dataclass(frozen=True)
class Source:
    """One input file and its name in tables and manifests."""

    file: Path
    name: str
    control: bool


def find_sources(inputs: Iterable[str], control: Iterable[str], paths: Paths) -> list[Source]:
    """Files in the order named, a glob's or folder's files sorted, inputs before control rows, each file once, whatever
    links lead to it.

    Raises MissingInput for a name that leads nowhere, UsageError for one that is not UTF-8; a control glob may match nothing.
    """
    found: dict[Path, Source] = {}
    inputs = list(inputs)
    if not inputs:
        raise MissingInput("data.inputs: names no file; give at least one file, folder or glob")
    for pattern in inputs:
        for file in _expand(pattern, paths.root, required=True):
            found.setdefault(file.resolve(), Source(file, paths.relative(file), False))
    for pattern in control:
        for file in _expand(pattern, paths.root, required=not glob.has_magic(pattern)):
            found.setdefault(file.resolve(), Source(file, paths.relative(file), True))
    for source in found.values():
        check_name(source.name)
    return list(found.values())


def refuse_outside_data(sources: Iterable[Source], paths: Paths) -> None:
    """Under DVC a stage may read only what dvc.yaml names as its dependencies. Raises UsageError."""
    if not (os.environ.get("DVC_STAGE") or os.environ.get("DVC_ROOT")):
        return
    seen = [paths.root / "data" / name for name in ("raw", "control", "assets")]
    for source in sources:
        if not any(source.file.is_relative_to(folder) for folder in seen):
            raise UsageError(
                f"{source.name}: lies outside data/raw, data/control and data/assets, where DVC sees changes; copy it into data/raw and "
                f"`dvc add` it there, or run it without DVC: pipeline run {source.name} --out DIR"
            )


def not_kept(sources: Iterable[Source]) -> list[Source]:
    """Files whose bytes neither Git nor DVC keeps: a hash in a manifest could never bring them back."""
    loose = [source for source in sources if not _has_pointer(source.file)]
    tracked = {folder: _tracked(folder) for folder in {source.file.parent for source in loose}}
    return [source for source in loose if source.file.name not in tracked[source.file.parent]]


def how_to_keep(source: Source) -> str:
    """What to do about a file that nothing keeps."""
    if any((folder / ".dvc").is_dir() for folder in source.file.absolute().parents):
        return f"`dvc add {source.name}`"
    return "copy it into data/raw of a project and `dvc add` it there"


def _expand(pattern: str, root: Path, required: bool) -> list[Path]:
    place = root / pattern
    if place.is_file():
        return [place]
    found = list(_below(place)) if place.is_dir() else [root / name for name in glob.glob(pattern, root_dir=root, recursive=True)]
    files = sorted(file for file in found if file.is_file() and not file.name.endswith(NO_DATA))
    if not files and required:
        pointer = place.with_name(place.name + ".dvc")
        hint = (
            f"only its pointer {pointer.name} is there: run `dvc pull` or `dvc checkout`" if pointer.is_file() else "data.inputs names it"
        )
        below = "" if Path(pattern).is_absolute() else f" below {root}"
        raise MissingInput(f"{pattern}: no such file{below} and no glob that matches one; {hint}")
    return files


def _below(folder: Path) -> Iterator[Path]:
    """Everything below a folder that is not hidden, in each real folder once: a link may lead back to one above it."""
    seen: set[str] = set()
    for place, folders, files in os.walk(folder, followlinks=True):
        real = os.path.realpath(place)
        folders[:] = [] if real in seen else sorted(name for name in folders if not name.startswith("."))
        yield from (Path(place, name) for name in files if real not in seen and not name.startswith("."))
        seen.add(real)


def _has_pointer(file: Path) -> bool:
    """True where `dvc add` has been called on the file or a folder above it."""
    return any(place.with_name(place.name + ".dvc").is_file() for place in (file, *file.parents) if place.name)


def _tracked(folder: Path) -> set[str]:
    """Names of the files directly in a folder that Git knows; none where there is no Git."""
    command = ["git", "-C", str(folder), "ls-files", "-z", "--", ":(glob)*"]
    try:
        found = subprocess.run(command, capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return set()
    return set(map(os.fsdecode, found.stdout.split(b"\0"))) if found.returncode == 0 else set()
