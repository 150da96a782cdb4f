"""What dvc.yaml says would run again: after an edit of params, or now. Read from the file, without running DVC's own code."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pipeline.core.params import read_yaml
from pipeline.core.paths import Paths
from pipeline.runners.night import dvc_command, dvc_environment


def affected_by(keys: Iterable[str], dvc_yaml: Path) -> list[str]:
    """Stages that read one of the params (section.key) and all stages behind them, in order."""
    stages = read_yaml(dvc_yaml.read_text(encoding="utf-8"), str(dvc_yaml))["stages"]
    hit = {name for name, stage in stages.items() if any(_reads(stage, key) for key in keys)}
    return downstream(hit, stages)


def downstream(hit: set[str], stages: dict[str, Any]) -> list[str]:
    """The given stages and all that depend on their outs, in the order of the file (which is a topological one)."""
    changed: set[str] = set()
    found = []
    for name, stage in stages.items():
        if name in hit or changed & set(stage.get("deps") or ()):
            found.append(name)
            changed |= set(outs(stage))
    return found


def outs(stage: dict[str, Any]) -> list[str]:
    """Paths a stage puts out, metrics and plots included."""
    listed = [item for key in ("outs", "metrics", "plots") for item in stage.get(key) or ()]
    return [item if isinstance(item, str) else next(iter(item)) for item in listed]


def changed_now(paths: Paths) -> list[str] | None:
    """Stages that `dvc repro` would run in this workspace now, in order. None when DVC cannot say."""
    done = subprocess.run(dvc_command("status", "--json"), cwd=paths.root, env=dvc_environment(), capture_output=True, text=True)
    if done.returncode != 0:
        return None
    status: dict[str, Any] = json.loads(done.stdout or "{}")
    stages = read_yaml((paths.root / "dvc.yaml").read_text(encoding="utf-8"), "dvc.yaml")["stages"]
    really = {name for name, reasons in status.items() if any(reason != "always changed" for reason in reasons)}
    return downstream(really & set(stages), stages)


def _reads(stage: dict[str, Any], key: str) -> bool:
    return any(key == path or key.startswith(path + ".") or path.startswith(key + ".") for path in stage.get("params") or ())
