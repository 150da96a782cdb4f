"""A side of a comparison: a folder as it is, or the tables of a Git revision or DVC experiment, restored from DVC's cache."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from pipeline.core.errors import UsageError
from pipeline.core.paths import Paths
from pipeline.runners.machine import Machine

TABLES = ("validated", "clean", "prompts", "completions", "scores", "bad_cases")
FILES = ("models/model.json", "reports/metrics.json", "reports/gate.json")


def resolve_side(name: str, here: Path, scratch: Path) -> Paths:
    """The root that `name` means. A restored one lies below scratch/SHA. Raises UsageError when it means nothing."""
    folder = Path(name)
    if (folder / "data/completions/manifest.json").is_file():
        return Paths(folder)
    sha = _commit(name, here)
    if sha is None:
        if folder.is_dir():
            raise UsageError(f"{name}: holds no data/completions yet; run the chain there first")
        raise UsageError(f"{name}: neither a folder with results, nor a Git revision or DVC experiment of {here}")
    root = scratch / sha
    if not (root / "data/completions/manifest.json").is_file():
        _restore(name, sha, here, root)
    return Paths(root)


def _commit(name: str, here: Path) -> str | None:
    """The commit of a revision, or of the DVC experiment with that name."""
    git = partial(Machine().run, "git", "-C", str(here))
    found = git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    if found:
        return found.strip()
    refs = git("for-each-ref", "--format=%(objectname) %(refname)", "refs/exps") or ""
    for line in refs.splitlines():
        commit, _, ref = line.partition(" ")
        if ref.rpartition("/")[2] == name:
            return commit
    return None


def _restore(name: str, sha: str, here: Path, root: Path) -> None:
    """Copy the stage outs that a commit's dvc.lock names out of DVC's cache."""
    from dvc.api import DVCFileSystem  # type: ignore[import-untyped]  # heavy, and not needed to compare folders

    files = DVCFileSystem(str(here), rev=sha)
    wanted = [*(f"data/{table}" for table in TABLES), *FILES]
    try:
        for path in wanted:
            if files.exists(path):
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                files.get(path, str(root / path), recursive=files.isdir(path))
    except Exception as error:  # DVC has many kinds; all of them mean that the cache lacks something
        raise UsageError(
            f"{name}: DVC's cache has not all of its outs ({type(error).__name__}: {error}); `dvc fetch`, or run that revision again"
        ) from None
    if not (root / "data/completions/manifest.json").is_file():
        raise UsageError(f"{name}: that revision's dvc.lock names no data/completions; was the chain run before it was committed?")
