"""Is everything still what the manifests say? Every file is hashed once; the chain of manifests is walked both ways.

A file's sha256 is in the manifest beside it, a manifest's own digest is in itself, and each stage's manifest is named
with its sha256 by the stages after it, so neither a file nor a manifest can change unseen.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.core.errors import MissingInput
from pipeline.core.hashing import sha256_file
from pipeline.core.manifest import FORMAT, signed
from pipeline.core.paths import Paths


@dataclass(frozen=True)
class Claim:
    """A manifest says that a file has these bytes."""

    file: Path
    bytes: int
    sha256: str
    said_by: str


@dataclass
class Verdict:
    """differences: one line each. files and bytes: what was hashed. notes: what could not be checked."""

    differences: list[str]
    files: int
    bytes: int
    notes: list[str]


def verify(paths: Paths, checkpoint: Path | None = None) -> Verdict:
    """Check all manifests below a root. checkpoint: the folder of the weights that model.json names, None: not checked.

    Raises MissingInput when there is no manifest at all.
    """
    claims: list[Claim] = []
    differences: list[str] = []
    notes: list[str] = []
    manifests = _manifest_files(paths)
    if not manifests:
        raise MissingInput(f"{paths.root}: holds no manifest; nothing has been written here yet (--root names another folder)")
    for file in manifests:
        name = paths.relative(file)
        manifest = _read(file)
        if manifest is None:
            differences.append(f"{name}: not readable as JSON")
            continue
        differences += _about_itself(name, manifest)
        claims += _claims(file, name, manifest, paths)
        differences += _strangers(file, name, manifest, paths)
    if paths.model_json in manifests:
        model = _read(paths.model_json) or {}
        if checkpoint is None:
            notes.append(f"the weights of {model.get('source')} are not here; their files were not checked")
        else:
            claims += [_claim(checkpoint / item["path"], item, "models/model.json") for item in model.get("files", [])]
    checked = sorted({claim.file for claim in claims})
    found = dict(zip(checked, _digests(checked)))
    for claim in dict.fromkeys(claims):
        differences += _compare(claim, found[claim.file], paths)
    sizes = [size for size, _ in found.values() if size is not None]
    return Verdict(list(dict.fromkeys(differences)), len(sizes), sum(sizes), notes)


def _manifest_files(paths: Paths) -> list[Path]:
    files = [paths.model_json, *(folder / "manifest.json" for folder in paths.stage_folders.values()), paths.gate_json]
    return [file for file in files if file.is_file()]


def _about_itself(name: str, manifest: dict[str, Any]) -> Iterator[str]:
    if "self_sha256" in manifest and signed(manifest)["self_sha256"] != manifest["self_sha256"]:
        yield f"{name}: was edited: its content does not give its own digest"
    if manifest.get("format") not in (None, FORMAT):
        yield f"{name}: has format {manifest['format']}, this version reads {FORMAT}"
    rows = manifest.get("rows")
    if isinstance(rows, dict) and "into" in rows and rows["into"] != rows["out"] + rows["rejected"] + rows["failed"]:
        yield f"{name}: rows are not conserved: {rows}"
    if manifest.get("mixed"):
        yield f"{name}: mixed: {', '.join(manifest.get('changed_during_run', []))} changed while the stage ran"


def _claims(file: Path, name: str, manifest: dict[str, Any], paths: Paths) -> Iterator[Claim]:
    """Outputs lie beside the manifest; inputs and other described files (pages, metrics) are relative to the root."""
    outputs = manifest.get("outputs", [])
    for item in outputs if isinstance(outputs, list) else ():
        yield _claim(file.parent / item["path"], item, name)
    rest = {key: value for key, value in manifest.items() if key not in ("outputs", "stages", "model", "files", "gate")}
    for item in _described(rest):
        yield _claim(paths.root / item["path"], item, name)


def _described(value: Any) -> Iterator[dict[str, Any]]:
    """Every {path, bytes, sha256} inside plain data."""
    if isinstance(value, dict):
        if {"path", "bytes", "sha256"} <= value.keys():
            yield value
        else:
            for item in value.values():
                yield from _described(item)
    elif isinstance(value, list):
        for item in value:
            yield from _described(item)


def _claim(file: Path, item: dict[str, Any], said_by: str) -> Claim:
    return Claim(file, item["bytes"], item["sha256"], said_by)


def _strangers(file: Path, name: str, manifest: dict[str, Any], paths: Paths) -> Iterator[str]:
    """Files in a stage's folder that its manifest does not name."""
    if file.name != "manifest.json" or not isinstance(manifest.get("outputs"), list):
        return
    named = {item["path"] for item in manifest["outputs"]} | {"manifest.json"}
    for path in sorted(p for p in file.parent.rglob("*") if p.is_file()):
        if path.relative_to(file.parent).as_posix() not in named:
            yield f"{paths.relative(path)}: is not named in {name}"


def _digests(files: Iterable[Path]) -> Iterator[tuple[int | None, str | None]]:
    """(bytes, sha256) of each file, hashed on all cores; None for a file that is not there."""
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        yield from pool.map(_digest, files)


def _digest(file: Path) -> tuple[int | None, str | None]:
    try:
        return file.stat().st_size, sha256_file(file)
    except (FileNotFoundError, NotADirectoryError):
        return None, None


def _compare(claim: Claim, found: tuple[int | None, str | None], paths: Paths) -> Iterator[str]:
    size, digest = found
    name = paths.relative(claim.file)
    if size is None:
        yield f"{name}: is gone; {claim.said_by} names it"
    elif size != claim.bytes:
        yield f"{name}: has {size:,} bytes, {claim.said_by} says {claim.bytes:,}"
    elif digest != claim.sha256:
        yield f"{name}: has other bytes than {claim.said_by} says (sha256 {str(digest)[:12]}..., not {claim.sha256[:12]}...)"


def _read(file: Path) -> dict[str, Any] | None:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        return None
    return data if isinstance(data, dict) else None
