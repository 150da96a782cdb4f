"""What the project says of itself: every import is declared, every declared package is used and locked."""

import ast
import re
import sys
import tomllib
from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from pipeline.core.hashing import PACKAGE

PROJECT = PACKAGE.parent
ABOUT = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
RUN = [Requirement(line) for line in ABOUT["dependencies"]]
EXTRAS = {name: [Requirement(line) for line in lines] for name, lines in ABOUT["optional-dependencies"].items()}
CALLED_AS_PROGRAMS = {"dvc"}  # packages that are run, not imported
PEERS = {"transformers"}  # measured by `pipeline bench --beside`, no dependency


def names(requirements):
    return {canonicalize_name(requirement.name) for requirement in requirements}


def imported():
    """Distributions that the package imports at any level, with a file that does."""
    where = metadata.packages_distributions()
    found = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            for module in {module.split(".")[0] for module in modules} - set(sys.stdlib_module_names) - {PACKAGE.name}:
                found[canonicalize_name(where.get(module, [module])[0])] = file.relative_to(PROJECT)
    return found


def locked(name):
    text = (PROJECT / name).read_text(encoding="utf-8")
    return {canonicalize_name(package): version for package, version in re.findall(r"^([\w.-]+)==(\S+)$", text, re.MULTILINE)}


def test_every_import_is_declared():
    declared = names(RUN) | set().union(*(names(extra) for name, extra in EXTRAS.items() if name != "dev"))
    assert {name: file for name, file in imported().items() if name not in declared | PEERS} == {}


def test_every_declared_package_is_used():
    assert names(RUN) - set(imported()) - CALLED_AS_PROGRAMS == set()


def test_the_locks_hold_exact_versions_that_the_project_allows():
    run, dev = locked("requirements.lock"), locked("requirements-dev.lock")
    for requirement in [*RUN, *EXTRAS["dev"]]:
        version = {**run, **dev}[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), requirement
    assert names(RUN) <= set(run)
    assert not set(run) & set(dev)
    assert re.fullmatch(r"[\d.]+", run["torch"])
    assert not any(word in name for name in run for word in ("nvidia", "triton", "cuda"))


def test_the_locks_are_complete():
    """Each locked package's own needs are locked too, whether they apply here or not elsewhere."""
    run, dev = locked("requirements.lock"), locked("requirements-dev.lock")
    for lock, held in ((run, run), (dev, {**run, **dev})):
        for name in lock:
            needs = [Requirement(line) for line in metadata.requires(name) or ()]
            here = [need for need in needs if not need.marker or need.marker.evaluate({"extra": ""})]
            missing = names(here) - set(held)
            assert not missing, f"{name} needs {missing}: run `make lock`"
