"""Reading safetensors straight into memory that is already there: no second copy, no mapping, no torch, never pickle.

A file is 8 bytes of header length (little endian), a JSON header {name: {dtype, shape, data_offsets}}, then the data. Sizes are
checked before anything is allocated, so a cut file, a Git LFS pointer or an absurd header is a named error and not a crash.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from pipeline.core.errors import MissingInput, ModelError
from pipeline.model.config import read_json

MAX_HEADER_BYTES = 100_000_000
ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1,
              "U16": 2, "U32": 4, "U64": 8, "F8_E4M3": 1, "F8_E5M2": 1}  # fmt: skip
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


@dataclass(frozen=True)
class Entry:
    """Where one tensor lies: `start` counts from the beginning of the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    bytes: int


class SafetensorsFile:
    """One open file and its header."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._handle = open(file, "rb", buffering=0)  # noqa: SIM115 - closed by close()
        try:
            self.entries, self.metadata = _read_header(file, self._handle.fileno())
        except BaseException:
            self._handle.close()
            raise

    def __enter__(self) -> SafetensorsFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._handle.close()

    def close(self) -> None:
        self._handle.close()

    def read_into(self, name: str, buffer: memoryview, offset: int = 0) -> None:
        """Fill a writable byte buffer with the tensor's bytes from `offset` on."""
        entry = self.entries[name]
        assert offset + buffer.nbytes <= entry.bytes, f"{name}: {buffer.nbytes} bytes from {offset} of {entry.bytes}"
        done = 0
        while done < buffer.nbytes:
            count = os.preadv(self._handle.fileno(), [buffer[done:]], entry.start + offset + done)
            if count <= 0:
                raise ModelError(f"{self.file}: ends inside tensor {name}; the file changed while it was read")
            done += count


def _read_header(file: Path, handle: int) -> tuple[dict[str, Entry], dict[str, Any]]:
    size = os.fstat(handle).st_size
    start = os.pread(handle, 8, 0)
    if start.startswith(b"version "):
        raise ModelError(f"{file}: is a Git LFS pointer of {size} bytes, not the weights; fetch them with `git lfs pull`")
    if size < 10:
        raise ModelError(f"{file}: {size} bytes are no safetensors file; is the download complete?")
    length = int.from_bytes(start, "little")
    if length > min(MAX_HEADER_BYTES, size - 8):
        raise ModelError(f"{file}: claims a header of {length} bytes in a file of {size} (limit {MAX_HEADER_BYTES}); "
                         "damaged, or no safetensors file; download it again")  # fmt: skip
    try:
        header = json.loads(os.pread(handle, length, 8))
        metadata = header.pop("__metadata__", {})
        entries = {name: _entry(item, 8 + length) for name, item in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ModelError(f"{file}: header is damaged ({error}); download it again") from None
    _check_layout(file, entries, 8 + length, size)
    return entries, metadata


def _entry(item: dict[str, Any], data_start: int) -> Entry:
    begin, end = item["data_offsets"]
    shape = tuple(item["shape"])
    if not all(type(number) is int for number in (begin, end, *shape)):
        raise ValueError(f"sizes must be whole numbers, found shape {list(shape)} in bytes {begin} to {end}")
    if item["dtype"] not in ITEM_BYTES:
        raise ValueError(f"unknown dtype {item['dtype']!r}")
    if end - begin != math.prod(shape) * ITEM_BYTES[item["dtype"]] or min((begin, *shape), default=0) < 0:
        raise ValueError(f"shape {list(shape)} of {item['dtype']} does not fill bytes {begin} to {end}")
    return Entry(item["dtype"], shape, data_start + begin, end - begin)


def _check_layout(file: Path, entries: dict[str, Entry], data_start: int, size: int) -> None:
    """The tensors must fill the data part exactly, without holes or overlaps."""
    at = data_start
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].bytes)):
        if entry.start != at:
            raise ModelError(f"{file}: tensor {name} starts at byte {entry.start}, expected {at}; the header is damaged")
        at += entry.bytes
    if at != size:
        what = f"cut by {at - size} bytes" if at > size else f"{size - at} bytes too long"
        raise ModelError(f"{file}: {what} ({size} bytes, the header promises {at}); a partial download? Fetch it again")


def weight_files(folder: Path) -> list[Path]:
    """The files that hold a checkpoint's weights, in name order: those of the index, or the single file.

    Raises MissingInput without weights, ModelError on a missing shard or a stray file with the same tensors.
    """
    index = folder / INDEX
    found = sorted(folder.glob("*.safetensors"))
    if index.is_file():
        names = sorted(set(index_map(folder).values()))
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise ModelError(f"{folder}: {INDEX} names {', '.join(missing)}, not there ({len(missing)} of {len(names)} shards); "
                             "a partial download? Fetch the rest")  # fmt: skip
        return [folder / name for name in names]
    if folder / SINGLE in found:
        return [folder / SINGLE]
    if len(found) == 1:
        return found
    if found:
        raise ModelError(f"{folder}: {len(found)} .safetensors files without {INDEX}; fetch the index too")
    pickled = sorted(p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".pth", ".ckpt"))
    if pickled:
        raise ModelError(f"{folder}: weights only as {pickled[0]}; pickle can run code and is never read, convert them to safetensors")
    raise ModelError(f"{folder}: no weights (no {SINGLE}, no {INDEX}); is the download complete?")


def index_map(folder: Path) -> dict[str, str]:
    """tensor name: file name, as the index has it."""
    data = read_json(folder / INDEX).get("weight_map")
    if not isinstance(data, dict) or not all(isinstance(v, str) and v == Path(v).name for v in data.values()):
        raise ModelError(f"{folder / INDEX}: weight_map must give a file name in this folder for each tensor")
    return data


class Shards:
    """All files of a checkpoint open at once, their headers checked against the index and against stray files."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise MissingInput(f"{folder}: no such folder")
        self.folder = folder
        self._files: dict[str, SafetensorsFile] = {}
        try:
            for file in weight_files(folder):
                self._files[file.name] = SafetensorsFile(file)
            self.where = self._locate()
            self._refuse_strays()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Shards:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def file_of(self, name: str) -> Path:
        return self.folder / self.where[name]

    def entry(self, name: str) -> Entry:
        return self._files[self.where[name]].entries[name]

    def read_into(self, name: str, buffer: memoryview, offset: int = 0) -> None:
        self._files[self.where[name]].read_into(name, buffer, offset)

    @property
    def bytes(self) -> int:
        return sum(entry.bytes for file in self._files.values() for entry in file.entries.values())

    def _locate(self) -> dict[str, str]:
        """tensor: file, where index and headers agree on every name."""
        where: dict[str, str] = {}
        for name, file in self._files.items():
            for tensor in file.entries:
                if tensor in where:
                    raise ModelError(f"{self.folder}: tensor {tensor} is in both {where[tensor]} and {name}")
                where[tensor] = name
        if (self.folder / INDEX).is_file():
            listed = index_map(self.folder)
            wrong = sorted(name for name in {*listed, *where} if listed.get(name) != where.get(name))
            if wrong:
                tensor = wrong[0]
                have = f"found in {where[tensor]}" if tensor in where else "in none of the files"
                said = f"in {listed[tensor]}" if tensor in listed else "nowhere"
                raise ModelError(f"{self.folder}: {INDEX} puts {tensor} {said}, but it is {have}; index and shards are of different "
                                 "versions, fetch all of them again")  # fmt: skip
        return where

    def _refuse_strays(self) -> None:
        """A further file with the same tensors: which of the two is meant cannot be known."""
        for file in sorted(self.folder.glob("*.safetensors")):
            if file.name in self._files:
                continue
            with SafetensorsFile(file) as stray:
                same = sorted(set(stray.entries) & set(self.where))
            if same:
                raise ModelError(f"{file}: not named by the index, but holds the same tensors ({same[0]} and {len(same) - 1} more); "
                                 "remove the file that is not meant")  # fmt: skip
