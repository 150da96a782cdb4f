"""The preprocessor that training, service and the nightly run share: validated rows in, clean rows out.

Every row ends in `clean` or, with a reason, in `rejected`. What it does depends on its params alone; the fingerprint names
them together with the versions of the steps.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.core import schemas
from pipeline.core.errors import ModelError
from pipeline.core.hashing import sha256_json
from pipeline.core.params import PreprocessParams, PromptParams
from pipeline.core.telemetry import Meter
from pipeline.text import golden
from pipeline.text.dedup import DEDUP_VERSION, Deduplicator, Duplicates, Fingerprints, fingerprints
from pipeline.text.flat import flatten
from pipeline.text.language import languages
from pipeline.text.steps import choose_steps, clean_texts

VERSION = 1
STAGE = "preprocess"
VALIDATED_COLUMNS = ["ordinal", "id", "source_file", "source_line", "control", "text", "messages", "overrides"]  # all that is read


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
        filled = pc.fill_null(texts, "")
        with meter.phase("language"):
            tags = languages(flat.last(filled))
        text, messages = flat.columns(filled)
        chars = flat.characters(texts)
        table = pa.table(
            {
                "ordinal": validated["ordinal"],
                "text": text,
                "messages": messages,
                "language": pa.array(tags, pa.string()),
                "steps_applied": pa.array(flat.union(fired, [step.name for step in self.steps]), pa.list_(pa.string())),
                "chars_in": pa.array(flat.characters(flat.texts)),
                "chars_out": pa.array(chars),
            },
            schema=schemas.CLEAN,
        )
        unstable = flat.rows_with_null(texts).tolist()
        absent = pc.and_(pc.is_null(validated["text"]), pc.is_null(validated["messages"])).to_pylist()
        reasons = [self._reason(*row) for row in zip(chars.tolist(), unstable, absent)]
        return _split(table, validated, reasons)

    def _reason(self, chars: int, unstable: bool, absent: bool) -> tuple[str, str] | None:
        """Reason code and detail, or None to keep the row. Lengths are in characters after cleaning."""
        low, high = self.params.min_chars, self.params.max_chars
        if unstable:
            return "not_stable", "cleaning changes this text again and again; leave out a step or give the row another form"
        if absent and low:
            return "missing_text", "the row has neither a field data.text_field nor data.messages_field; name the right one there"
        if chars < low:
            return "too_short", f"{chars} characters after cleaning, preprocess.min_chars is {low}"
        if high is not None and chars > high:
            return "too_long", f"{chars} characters after cleaning, preprocess.max_chars is {high}"
        return None


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
