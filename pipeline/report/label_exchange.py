"""The loop closes: cases out to people as JSONL or CSV, their verdicts back in, corrected answers on to control set and fine-tuning.

A CSV is made for spreadsheets: with a byte order mark, and no cell of row text that a spreadsheet would run as a formula.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pipeline.core.errors import MissingInput, ParamsError, UsageError, some_of
from pipeline.core.manifest import read_table, write_bytes
from pipeline.core.paths import Paths
from pipeline.report.labels import Label, digest, labels_file, parse_label, read_labels
from pipeline.report.rows import Row, answered, ids

BLANK = ("verdict", "corrected", "cause")
COLUMNS = ("rank", "id", "sample", "rule", "found_cause", "evidence", "group", "prompt", "answer", "reference", "answer_sha256", *BLANK)
FORMULA = ("=", "+", "-", "@", "\t", "\r")


def cases(paths: Paths, *, limit: int, per_group: int = 1) -> list[dict[str, Any]]:
    """The ranked cases people should judge, `per_group` of each group of similar ones, each with blank columns to fill in."""
    table = read_table(paths.bad_cases).to_pylist()
    chosen: dict[tuple[int, int], dict[str, Any]] = {}
    groups: dict[int, int] = {}
    for item in table:
        key = (item["ordinal"], item["sample"])
        if key in chosen or item["rule"] == "rejected_input":
            continue
        group = item["cluster"]
        if group is not None and groups.get(group, 0) >= per_group:
            continue
        if len(chosen) == limit:
            break
        groups[group] = groups.get(group, 0) + 1
        chosen[key] = item
    rows = {(row.ordinal, row.sample): row for row in answered(paths, sorted({ordinal for ordinal, _ in chosen}))}
    return [_case(item, rows[key]) for key, item in chosen.items()]


def _case(item: dict[str, Any], row: Row) -> dict[str, Any]:
    return {
        "rank": item["rank"], "id": row.id, "sample": row.sample, "rule": item["rule"], "found_cause": item["cause"],
        "evidence": item["evidence"], "group": item["cluster"], "prompt": row.prompt, "answer": row.answer,
        "reference": row.references or None, "answer_sha256": digest(row.answer), **dict.fromkeys(BLANK),
    }  # fmt: skip


def write_rows(file: Path, rows: list[dict[str, Any]], columns: Iterable[str]) -> None:
    """JSONL, or CSV by the file's ending. Raises UsageError for another ending."""
    if file.suffix == ".jsonl":
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        write_bytes(file, text.encode("utf-8", "replace"))
        return
    if file.suffix != ".csv":
        raise UsageError(f"{file}: give a name that ends in .jsonl or .csv")
    buffer = io.StringIO(newline="")
    writer = csv.DictWriter(buffer, list(columns))
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    write_bytes(file, buffer.getvalue().encode("utf-8-sig", "replace"))


def _cell(value: Any) -> str:
    """A cell that stays text: lists as JSON, an apostrophe before what a spreadsheet would take for a formula."""
    text = "" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return "'" + text if isinstance(value, str) and text.startswith(FORMULA) else text


def read_rows(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line, row) of a JSONL or CSV file that came back. Raises UsageError naming the place."""
    if not file.is_file():
        raise MissingInput(f"{file}: no such file")
    text = file.read_text(encoding="utf-8-sig", errors="replace")
    if file.suffix == ".csv":
        reader = csv.DictReader(io.StringIO(text, newline=""))
        if "id" not in (reader.fieldnames or ()) or "verdict" not in (reader.fieldnames or ()):
            raise UsageError(
                f"{file}: the first line must name the columns id and verdict, found {', '.join(reader.fieldnames or ()) or 'none'}"
            )
        for row in reader:
            yield reader.line_num, {key: value for key, value in row.items() if key is not None}
        return
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except ValueError as error:
                raise UsageError(f"{file}:{number}: {error}; a label file holds one JSON object per line, or is a .csv") from None


def take_in(paths: Paths, file: Path, *, skip_unknown: bool = False) -> dict[str, int]:
    """Check every verdict of a file and append the new ones to data/assets/labels.jsonl, all or none.

    Rows without a verdict are passed over. A label that names no answer is tied to the answer of tonight. Returns counts.
    Raises UsageError naming the first wrong line, or the ids that are not among the rows of this run.
    """
    judged = _judged(file)
    known = ids(paths, {label.id for label, _ in judged} | {_unquoted(label.id) for label, _ in judged})
    unknown = sorted({label.id for label, _ in judged if label.id not in known and _unquoted(label.id) not in known})
    if unknown and not skip_unknown:
        raise UsageError(f"{file}: not among the rows of this run: {some_of(unknown)}; --skip-unknown leaves them out")
    labels = [replace(label, id=label.id if label.id in known else _unquoted(label.id)) for label, _ in judged if label.id not in unknown]
    wanted = {ordinal for label in labels for ordinal in known[label.id]}
    answers = {(row.id, row.sample): row.answer for row in answered(paths, sorted(wanted))}
    labels = [
        label if label.answer_sha256 else replace(label, answer_sha256=digest(answers.get((label.id, label.sample)))) for label in labels
    ]
    before = read_labels(labels_file(paths))
    fresh = [label for label in dict.fromkeys(labels) if before.get((label.id, label.sample)) != label]
    _append(labels_file(paths), fresh)
    return {"read": len(judged), "new": len(fresh), "already_there": len(labels) - len(fresh), "unknown": len(unknown)}


def _judged(file: Path) -> list[tuple[Label, int]]:
    found = []
    for number, row in read_rows(file):
        if isinstance(row, dict) and not str(row.get("verdict") or "").strip():
            if str(row.get("corrected") or "").strip():
                raise UsageError(f"{file}:{number}: a corrected answer without a verdict; write good or bad")
            continue
        try:
            found.append((parse_label(row), number))
        except ValueError as error:
            raise UsageError(f"{file}:{number}: {error}") from None
    return found


def _append(file: Path, labels: list[Label]) -> None:
    """A version is a batch of lines with one number more than the last batch; nothing is ever rewritten."""
    if not labels:
        return
    held = file.read_text(encoding="utf-8") if file.is_file() else ""
    version = 1 + max((json.loads(line).get("version", 0) for line in held.splitlines() if line.strip()), default=0)
    lines = [json.dumps({"version": version, **asdict(label)}, ensure_ascii=False, sort_keys=True) for label in labels]
    write_bytes(file, (held + "".join(line + "\n" for line in lines)).encode("utf-8"))


def corrected(paths: Paths) -> list[tuple[Row, str]]:
    """(row of this run, corrected answer) of every label that has one, in order of arrival."""
    labels = {key: label for key, label in read_labels(labels_file(paths)).items() if label.corrected}
    if not labels:
        raise ParamsError(f"{labels_file(paths)}: no label has a corrected answer; fill the column `corrected` and import it")
    known = ids(paths, {key[0] for key in labels})
    rows = answered(paths, sorted({ordinal for ordinals in known.values() for ordinal in ordinals}))
    return [(row, label.corrected) for row in rows if (label := labels.get((row.id, row.sample))) is not None and label.corrected]


def as_control(pairs: list[tuple[Row, str]]) -> list[dict[str, Any]]:
    """Rows for data/control: what was asked, as it came, with the corrected answer as the reference."""
    return [
        {"id": f"labelled:{row.id}", **_asked(row), "reference": answer, **row.meta}
        for row, answer in pairs if not row.control
    ]  # fmt: skip


def _asked(row: Row) -> dict[str, Any]:
    return {"messages": row.raw_messages} if row.raw_messages is not None else {"text": row.raw}


def append_rows(file: Path, rows: list[dict[str, Any]]) -> int:
    """Add rows whose id is not there yet to a JSONL file; the number added."""
    held = file.read_text(encoding="utf-8") if file.is_file() else ""
    there = {json.loads(line)["id"] for line in held.splitlines() if line.strip()}
    fresh = [row for row in rows if row["id"] not in there]
    write_bytes(file, (held + "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in fresh)).encode("utf-8", "replace"))
    return len(fresh)


def _unquoted(text: str) -> str:
    """An id as it was before a spreadsheet's apostrophe was put before it."""
    return text[1:] if text.startswith("'") and text[1:].startswith(FORMULA) else text
