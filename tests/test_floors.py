"""The house: imports go down only, siblings never import each other, folder introductions import nothing."""

import ast
from pathlib import Path

import pytest

from pipeline.core.hashing import PACKAGE, module_file

FLOORS = [{"cli"}, {"stages"}, {"runners", "report"}, {"engine", "evaluation"}, {"tables", "text", "model"}, {"core"}]
FLOOR = {name: level for level, names in enumerate(FLOORS) for name in names}
FILES = sorted(PACKAGE.rglob("*.py"))
NO_TORCH = {f"engine/{name}.py" for name in ("request", "buckets", "pages", "scheduler")}


def imports(file: Path) -> list[tuple[str, int]]:
    """Every imported dotted name with its line, function-level ones included."""
    found = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno} relative import"
            found += [(f"{node.module}.{alias.name}", node.lineno) for alias in node.names]
    return found


def may_import(importer: str, imported: str) -> bool:
    return importer == imported or FLOOR[importer] < FLOOR[imported]


@pytest.mark.parametrize("file", [f for f in FILES if f.parent != PACKAGE], ids=lambda f: str(f.relative_to(PACKAGE)))
def test_imports_go_down_only(file):
    folder = file.relative_to(PACKAGE).parts[0]
    for name, line in imports(file):
        parts = name.split(".")
        if parts[0] == "pipeline" and len(parts) > 1 and parts[1] in FLOOR:
            assert may_import(folder, parts[1]), f"{file}:{line} {folder} must not import {name}"


def test_siblings_and_upward_imports_are_refused():
    assert not may_import("tables", "text")
    assert not may_import("core", "tables")
    assert may_import("cli", "core")


@pytest.mark.parametrize("file", [f for f in FILES if f.name == "__init__.py" and f.parent != PACKAGE], ids=str)
def test_folder_introductions_import_nothing(file):
    tree = ast.parse(file.read_text(encoding="utf-8"))
    assert len(tree.body) == 1
    assert ast.get_docstring(tree)


def test_policy_is_integers_and_text_knows_no_tensor():
    for file in FILES:
        relative = file.relative_to(PACKAGE).as_posix()
        if relative in NO_TORCH or relative.startswith(("text/", "core/", "tables/")):
            assert not any(name.split(".")[0] == "torch" for name, _ in imports(file)), relative


def test_every_folder_has_its_floor():
    assert {f.relative_to(PACKAGE).parts[0] for f in FILES if f.parent != PACKAGE} == set(FLOOR)
    assert module_file("pipeline.core.errors") == PACKAGE / "core/errors.py"
