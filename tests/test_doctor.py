"""The doctor on healthy and broken set-ups; the machine is faked where it cannot be broken."""

import json
import os
import shutil
import subprocess
import time

import psutil
import pytest

from pipeline.core.paths import Paths
from pipeline.runners.doctor import CHECKS, as_data, examine
from pipeline.runners.machine import Machine

GIB = 1024**3


class Healthy(Machine):
    """A machine on which nothing is wrong, whatever this one is like."""

    def python(self):
        return (3, 12, 1)

    def memory_available(self):
        return 16 * GIB

    def disk_free(self, folder):
        return 100 * GIB

    def driver(self):
        return None

    def torch_cuda(self):
        return None, 0


@pytest.fixture
def project(tmp_path):
    """A project under Git with one tracked input."""
    (tmp_path / "data/raw").mkdir(parents=True)
    (tmp_path / "data/raw/a.jsonl").write_text('{"id": "1", "text": "hello"}\n')
    (tmp_path / "params.yaml").write_text("model:\n  source: checkpoint\n")
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    (tmp_path / ".dvc/tmp").mkdir(parents=True)
    for words in (
        ["init", "-q"],
        ["add", "data", "params.yaml", "dvc.yaml"],
        ["-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "x"],
    ):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    return Paths(tmp_path)


def found(paths, machine=None, level=None):
    """{check: words and way out} of the findings of one level."""
    findings = examine(paths, machine or Healthy())
    assert all(
        finding.way_out or finding.level == "ok" or finding.check in finding.words or len(finding.words) > 20 for finding in findings
    )
    return {finding.check: f"{finding.words} {finding.way_out}" for finding in findings if finding.level == level}


def test_a_healthy_project_has_no_error(project, tiny_checkpoint):
    shutil.copytree(tiny_checkpoint, project.root / "checkpoint")
    assert found(project, level="error") == {}
    assert "1 input file(s)" in found(project, level="ok")["inputs"]
    assert "complete" in found(project, level="ok")["model"]


def test_a_missing_shard_and_a_missing_checkpoint_are_errors(project, tiny_checkpoint):
    assert "checkpoint" in found(project, level="error")["model"]
    shutil.copytree(tiny_checkpoint, project.root / "checkpoint")
    weights = project.root / "checkpoint/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert "cut by 100 bytes" in found(project, level="error")["model"]
    index = {"weight_map": {"model.norm.weight": "model-00002-of-00002.safetensors"}}
    (project.root / "checkpoint/model.safetensors.index.json").write_text(json.dumps(index))
    assert "model-00002-of-00002.safetensors" in found(project, level="error")["model"]


def test_a_driver_that_torch_cannot_use_is_named(project):
    class OldDriver(Healthy):
        def driver(self):
            return "470.1"

        def torch_cuda(self):
            return "12.8", 0

    class CpuBuild(OldDriver):
        def torch_cuda(self):
            return None, 0

    assert "sees no device under driver 470.1" in found(project, OldDriver(), "warning")["torch"]
    assert "CPU build" in found(project, CpuBuild(), "warning")["torch"]
    (project.root / "params.yaml").write_text("model:\n  device: cuda\n")
    assert "sees no" in found(project, Healthy(), "error")["torch"]


def test_a_full_disk_little_memory_and_an_old_python_are_errors(project, tiny_checkpoint):
    class Poor(Healthy):
        def disk_free(self, folder):
            return GIB // 10

        def memory_available(self):
            return 1000

        def python(self):
            return (3, 10, 2)

    shutil.copytree(tiny_checkpoint, project.root / "checkpoint")
    errors = found(project, Poor(), "error")
    assert set(errors) == {"disk", "memory", "python"}
    assert "store prune" in errors["disk"]
    assert "int8" in errors["memory"]


def test_no_git_stale_locks_and_loose_inputs_are_warnings(project):
    shutil.rmtree(project.root / ".git")
    project.work.mkdir()
    (project.work / "night.lock").write_text(json.dumps({"pid": 999999, "host": "h", "started": 0, "command": "night"}))
    (project.root / ".dvc/tmp/rwlock").write_text('{"out": {"write": {"pid": 999999, "cmd": "dvc repro"}}}')
    warnings = found(project, level="warning")
    assert "git init" in warnings["git"]
    assert "process 999999 on h) died" in warnings["locks"]
    assert "gone: 999999" in warnings["dvc"]
    assert "data/raw/a.jsonl" in warnings["inputs"]
    assert "dvc add" in warnings["inputs"]


def test_wrong_params_and_missing_inputs_are_errors(project):
    (project.root / "params.yaml").write_text("generate:\n  temprature: 1\n")
    assert "generate.temperature" in found(project, level="error")["params"]
    (project.root / "params.yaml").write_text("data:\n  inputs: [data/raw/none.jsonl]\n")
    assert "data/raw/none.jsonl" in found(project, level="error")["inputs"]


def test_json_says_whether_all_is_well(project):
    data = as_data(examine(project, Healthy()))
    assert data["ok"] is False  # no checkpoint
    assert {item["check"] for item in data["findings"]} <= {*CHECKS, "params", "memory", "licence"}
    json.dumps(data)


def test_a_process_that_ended_unnoticed_does_not_run():
    child = subprocess.Popen(["true"], stdout=subprocess.PIPE)
    child.stdout.read()  # closed when it ends
    while psutil.Process(child.pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.001)
    assert not Machine().process_runs(child.pid)
    child.wait()
    assert Machine().process_runs(os.getpid())
