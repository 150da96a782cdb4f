"""The code files each DVC stage depends on, from what its module imports.

`python -m tests.dvc_closure --write` puts them into dvc.yaml.
"""

from __future__ import annotations

import io
import sys
from typing import Any

from ruamel.yaml import YAML

from pipeline.core.hashing import PACKAGE
from pipeline.core.hashing import code_files as files_of

PROJECT = PACKAGE.parent
DVC_YAML = PROJECT / "dvc.yaml"


def code_files(stage: str) -> list[str]:
    """What dvc.yaml names as the code of a stage."""
    return files_of(f"pipeline.stages.{stage}")


def read_dvc_yaml() -> dict[str, Any]:
    """dvc.yaml as DVC reads it, comments kept for writing it back."""
    data: dict[str, Any] = _yaml().load(DVC_YAML.read_text(encoding="utf-8"))
    return data


def write_dvc_yaml() -> bool:
    """Bring the code files of dvc.yaml up to date. True when something changed."""
    data = read_dvc_yaml()
    for name, stage in data["stages"].items():
        others = [dep for dep in stage["deps"] if not dep.startswith(PACKAGE.name + "/")]
        stage["deps"].clear()
        stage["deps"].extend([*others, *code_files(name)])
        stage["deps"].fa.set_block_style()
    text = io.StringIO()
    _yaml().dump(data, text)
    changed = text.getvalue() != DVC_YAML.read_text(encoding="utf-8")
    DVC_YAML.write_text(text.getvalue(), encoding="utf-8")
    return changed


def _yaml() -> YAML:
    yaml = YAML()
    yaml.width = 160
    yaml.indent(mapping=2, sequence=4, offset=2)
    return yaml


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        print("dvc.yaml written" if write_dvc_yaml() else "dvc.yaml was up to date")
    else:
        for stage_name in read_dvc_yaml()["stages"]:
            print(stage_name, *code_files(stage_name), sep="\n  ")
