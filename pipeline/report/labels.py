"""People's verdicts on answers: data/assets/labels.jsonl, one JSON object per line, newest last.

A label {id, sample, verdict: good|bad, cause, corrected, answer_sha256} speaks about one answer: when the answer has changed
since, the label no longer counts. Reading and applying only; import and export are in `label_exchange`.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.core.errors import ParamsError
from pipeline.core.paths import Paths
from pipeline.report.causes import CAUSES

VERDICTS = ("good", "bad")


@dataclass(frozen=True)
class Label:
    """One verdict. answer_sha256 None: about whatever stands there (feedback that named no answer)."""

    id: str
    verdict: str
    sample: int = 0
    cause: str | None = None
    corrected: str | None = None
    answer_sha256: str | None = None

    def applies(self, answer: str | None) -> bool:
        return self.answer_sha256 is None or self.answer_sha256 == digest(answer)


def labels_file(paths: Paths) -> Path:
    return paths.assets / "labels.jsonl"


def digest(answer: str | None) -> str:
    """sha256 of an answer's text, so that a label stays with the answer it was given for."""
    return hashlib.sha256((answer or "").encode()).hexdigest()


def read_labels(file: Path) -> dict[tuple[str, int], Label]:
    """The last label of each (id, sample); none where there is no file. Raises ParamsError naming the line."""
    if not file.is_file():
        return {}
    found = {}
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if line.strip():
            try:
                label = parse_label(json.loads(line))
            except (ValueError, TypeError) as error:
                raise ParamsError(f"{file}:{number}: {error}; mend the line or take it out") from None
            found[label.id, label.sample] = label
    return found


def parse_label(item: Any) -> Label:
    """A label from plain data. Raises ValueError saying which field is wrong."""
    if not isinstance(item, dict):
        raise ValueError(f"a label must be an object, got {type(item).__name__}")
    verdict, cause = str(item.get("verdict") or "").strip().lower(), str(item.get("cause") or "").strip().lower() or None
    if not str(item.get("id") or ""):
        raise ValueError("a label needs an id")
    if verdict not in VERDICTS:
        raise ValueError(f"verdict must be good or bad, got {item.get('verdict')!r}")
    if cause is not None and cause not in CAUSES:
        raise ValueError(f"cause must be one of {', '.join(CAUSES)}, got {item.get('cause')!r}")
    return Label(
        str(item["id"]), verdict, int(item.get("sample") or 0), cause, item.get("corrected") or None, item.get("answer_sha256") or None
    )
