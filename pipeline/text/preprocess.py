"""The preprocessor that training, service and the nightly run share: validated rows in, clean rows out.

Every row ends in `clean` or, with a reason, in `rejected`. What it does depends on its params alone; the fingerprint names
them together with the versions of the steps.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.core import schemas
from pipeline.core.errors import ModelError
from pipeline.core.hashing import sha256_json
from pipeline.core.params import PreprocessParams, PromptParams
from pipeline.core.telemetry import Meter
from pipeline.text import golden
from pipeline.text.dedup import DEDUP_VERSION, Deduplicator, Duplicates, Fingerprints, fingerprints
from pipeline.text.language import languages
from pipeline.text.steps import choose_steps, clean_texts

VERSION = 1
STAGE = "preprocess"
VALIDATED_COLUMNS = ["ordinal", "id", "source_file", "source_line", "control", "text", "messages", "overrides"]  # all that is read


@dataclass
class Flat:
    """The texts of many rows in one array: a text row has one, a messages row one per turn.

    counts: texts per row. messages: the parsed turns of the rows that have them, by row number.
    """

    texts: pa.Array
    counts: np.ndarray
    messages: dict[int, Any] = field(default_factory=dict)


class Preprocessor:
    """Cleans tables of schema VALIDATED. `apply` also removes duplicates within the table it is given."""

    def __init__(self, params: PreprocessParams) -> None:
        self.params = params
        self.steps = choose_steps(params.steps)
        # What happens to the text of one row; what training and service must share.
        self.row_fingerprint = sha256_json([VERSION, [step.describe() for step in self.steps]])
        dedup = [DEDUP_VERSION, params.dedup, params.dedup_threshold, params.dedup_keep_digits] if params.dedup != "none" else None
        self.fingerprint = sha256_json([self.row_fingerprint, params.min_chars, params.max_chars, dedup])

    def save(self, folder: Path, prompt: PromptParams = PromptParams()) -> None:  # noqa: B008 frozen
        """Write preprocessor.json beside a checkpoint: params, fingerprints and golden vectors of text, prompt and ids."""
        golden.save(self, folder, prompt)

    @classmethod
    def load(cls, folder: Path) -> Preprocessor:
        """The preprocessor saved beside a checkpoint. Raises ModelError where its golden vectors no longer come out."""
        data = golden.read(folder)
        preprocessor = cls(PreprocessParams.model_validate_json(json.dumps(data["preprocess"])))
        if preprocessor.fingerprint != data["fingerprint"]:
            problem: str | None = f"fingerprint {data['fingerprint'][:12]} was saved, this version makes {preprocessor.fingerprint[:12]}"
        else:
            problem = golden.difference(preprocessor, folder, data)
        if problem:
            raise ModelError(f"{folder / golden.FILE}: {problem}; use the version of this package that saved it, or train and save again")
        return preprocessor

    def apply(self, validated: pa.Table) -> tuple[pa.Table, pa.Table]:
        """Clean rows (CLEAN) and rejected rows (REJECTED), both in the order of arrival."""
        clean, rejected = self.clean(validated)
        if self.params.dedup == "none":
            return clean, rejected
        kept = self.kept(validated, clean)
        with Deduplicator(self.params.dedup_threshold) as dedup:
            dedup.add(self.fingerprints(clean, kept))
            clean, duplicates = split_duplicates(clean, kept, dedup.duplicates())
        return clean, pa.concat_tables([rejected, duplicates]).sort_by("ordinal")

    def kept(self, validated: pa.Table, clean: pa.Table) -> pa.Table:
        """The validated rows that came out clean."""
        return validated.filter(pc.is_in(validated["ordinal"], clean["ordinal"].combine_chunks()))

    def fingerprints(self, clean: pa.Table, kept: pa.Table) -> Fingerprints:
        """What duplicates among clean rows are found by; `kept` holds the same rows as they were validated."""
        assert self.params.dedup != "none"
        return fingerprints(clean, kept, self.params.dedup, self.params.dedup_keep_digits)

    def clean(self, validated: pa.Table, meter: Meter | None = None) -> tuple[pa.Table, pa.Table]:
        """All steps but the removal of duplicates; independent from row to row. meter: takes the seconds of each step."""
        meter = meter or Meter()
        flat = flatten(validated)
        texts, fired = clean_texts(self.steps, flat.texts, meter)
        row_of = np.repeat(np.arange(len(flat.counts)), flat.counts)
        applied = _by_row(fired, row_of, len(flat.counts), [step.name for step in self.steps])
        chars_in = _sums(flat.texts, row_of, len(flat.counts))
        chars_out = _sums(texts, row_of, len(flat.counts))
        unstable = np.zeros(len(flat.counts), bool)
        unstable[row_of[pc.is_null(texts).to_numpy(zero_copy_only=False)]] = True
        starts = np.cumsum(flat.counts) - flat.counts
        clean_text, messages = _unflatten(flat, pc.fill_null(texts, ""), starts)
        looked_at = pc.fill_null(texts, "").take(pa.array(starts + flat.counts - 1))
        with meter.phase("language"):
            tags = languages(looked_at.to_pylist())
        table = pa.table(
            {
                "ordinal": validated["ordinal"],
                "text": clean_text,
                "messages": messages,
                "language": pa.array(tags, pa.string()),
                "steps_applied": pa.array(applied, pa.list_(pa.string())),
                "chars_in": pa.array(chars_in),
                "chars_out": pa.array(chars_out),
            },
            schema=schemas.CLEAN,
        )
        reasons = [self._reason(int(n), bool(bad)) for n, bad in zip(chars_out, unstable)]
        return _split(table, validated, reasons)

    def _reason(self, chars: int, unstable: bool) -> tuple[str, str] | None:
        """Reason code and detail, or None to keep the row. Lengths are in characters after cleaning."""
        low, high = self.params.min_chars, self.params.max_chars
        if unstable:
            return "not_stable", "cleaning changes this text again and again; leave out a step or give the row another form"
        if chars < low:
            return "too_short", f"{chars} characters after cleaning, preprocess.min_chars is {low}"
        if high is not None and chars > high:
            return "too_long", f"{chars} characters after cleaning, preprocess.max_chars is {high}"
        return None


def flatten(validated: pa.Table) -> Flat:
    """All texts of a table in one array, rows in order."""
    text = _column(validated, "text")
    raw = _column(validated, "messages")
    if raw.null_count == len(raw):
        return Flat(pc.fill_null(text, ""), np.ones(len(text), np.int64))
    messages = {i: json.loads(value) for i, value in enumerate(raw.to_pylist()) if value is not None}
    parts: list[list[str]] = [[value or ""] for value in text.to_pylist()]
    for i, turns in messages.items():
        parts[i] = list(_contents(turns)) or [""]
    counts = np.array([len(part) for part in parts], np.int64)
    return Flat(pa.array([t for part in parts for t in part], pa.large_string()), counts, messages)


def _contents(turns: Any) -> list[str]:
    """Every text of a conversation in order; whatever else it holds is left alone."""
    found: list[str] = []
    _map_contents(turns, found.append)
    return found


def _map_contents(turns: Any, change: Any) -> Any:
    """The conversation with its texts changed, roles and all other keys as they are."""
    if not isinstance(turns, list):
        return turns
    return [
        {**turn, "content": _map_content(turn["content"], change)} if isinstance(turn, dict) and "content" in turn else turn
        for turn in turns
    ]


def _map_content(content: Any, change: Any) -> Any:
    if isinstance(content, str):
        return change(content)
    if isinstance(content, list):
        return [{**p, "text": change(p["text"])} if isinstance(p, dict) and isinstance(p.get("text"), str) else p for p in content]
    return content


def _unflatten(flat: Flat, texts: pa.Array, starts: np.ndarray) -> tuple[pa.Array, pa.Array]:
    """Columns text and messages from cleaned texts."""
    if not flat.messages:
        return texts.cast(pa.string()), pa.nulls(len(flat.counts), pa.string())
    values: list[str] = texts.to_pylist()
    out_text: list[str | None] = [values[start] for start in starts]
    out_messages: list[str | None] = [None] * len(starts)
    for i, turns in flat.messages.items():
        fresh = iter(values[starts[i] : starts[i] + flat.counts[i]])
        out_text[i] = None
        out_messages[i] = json.dumps(_map_contents(turns, lambda _, fresh=fresh: next(fresh)), ensure_ascii=False, separators=(",", ":"))
    return pa.array(out_text, pa.string()), pa.array(out_messages, pa.string())


def _by_row(fired: list[list[str]], row_of: np.ndarray, rows: int, order: list[str]) -> list[list[str]]:
    """The steps that changed any text of a row, in the order of params."""
    if len(fired) == rows:
        return fired
    found: list[set[str]] = [set() for _ in range(rows)]
    for row, names in zip(row_of.tolist(), fired):
        found[row].update(names)
    return [[name for name in order if name in names] for names in found]


def _sums(texts: pa.Array, row_of: np.ndarray, rows: int) -> np.ndarray:
    lengths = pc.fill_null(pc.utf8_length(texts), 0).to_numpy(zero_copy_only=False)
    return np.bincount(row_of, weights=lengths, minlength=rows).astype(np.int64)


def _column(table: pa.Table, name: str) -> pa.Array:
    return (
        pa.concat_arrays([chunk.cast(pa.large_string()) for chunk in table[name].chunks])
        if table[name].num_chunks
        else pa.array([], pa.large_string())
    )


def _split(clean: pa.Table, validated: pa.Table, reasons: Sequence[tuple[str, str] | None]) -> tuple[pa.Table, pa.Table]:
    keep = pa.array([reason is None for reason in reasons], pa.bool_())
    why = [reason for reason in reasons if reason is not None]
    return clean.filter(keep), rejected_table(validated.filter(pc.invert(keep)), STAGE, why)


def split_duplicates(clean: pa.Table, validated: pa.Table, duplicates: Duplicates) -> tuple[pa.Table, pa.Table]:
    """Take duplicates out of clean rows; `validated` holds the same rows."""
    found = duplicates.find(clean["ordinal"].to_numpy())
    reasons = [hit and (f"duplicate_{hit[1]}", f"{hit[1]} duplicate of the row with ordinal {hit[0]}, which stays") for hit in found]
    return _split(clean, validated, reasons)


def rejected_table(rows: pa.Table, stage: str, why: Sequence[tuple[str, str]]) -> pa.Table:
    """A REJECTED table of validated rows with a reason code and a detail each."""
    columns = {name: rows[name] for name in ("ordinal", "id", "source_file", "source_line", "control")}
    columns |= {
        "stage": pa.array([stage] * len(why), pa.string()),
        "reason": pa.array([reason for reason, _ in why], pa.string()),
        "detail": pa.array([detail for _, detail in why], pa.string()),
    }
    return pa.table(columns, schema=schemas.REJECTED)


def step_counts(clean: pa.Table) -> Counter[str]:
    """How many rows each step changed."""
    return Counter(pc.list_flatten(clean["steps_applied"]).to_pylist())
