"""Stage bucket: clean rows become prompts and token ids, in the order in which they will be generated.

Two passes: prompts are built and encoded in batches while their lengths are collected; then, with all lengths known, each
row gets its bucket and its place.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.core import schemas
from pipeline.core.errors import MissingInput, ModelError, ParamsError
from pipeline.core.manifest import (
    RowCount,
    StageOutput,
    changed_since,
    describe_file,
    describe_upstream,
    read_batches,
    read_json,
    read_manifest,
)
from pipeline.core.params import Params, PromptParams
from pipeline.core.paths import Paths
from pipeline.core.progress import Progress
from pipeline.core.scratch import ScratchTable
from pipeline.core.telemetry import Meter
from pipeline.engine.buckets import plan
from pipeline.model.source import resolve_source
from pipeline.text.chat_template import ChatTemplate
from pipeline.text.golden import mismatch
from pipeline.text.preprocess import Preprocessor, rejected_table
from pipeline.text.prompt import Prompt, PromptBuilder, PromptRow, Refusal
from pipeline.text.tokenizer import Tokenizer

CLEAN_COLUMNS = ["ordinal", "text", "messages"]
VALIDATED_COLUMNS = ["ordinal", "id", "source_file", "source_line", "control", "meta", "overrides"]
BATCH_ROWS = 2048  # three are in memory at once, with an object of the tokenizers library for each text
Built = tuple[pa.Table, pa.Table, Counter[str]]
BUILT = pa.schema([field for field in schemas.PROMPTS if field.name not in ("bucket", "position")])


@dataclass(frozen=True)
class Setting:
    """What the prompts of a run are made with, and what the manifest says of it."""

    builder: PromptBuilder
    inputs: list[dict[str, Any]]
    rows: int
    about: dict[str, Any]


@dataclass
class Tally:
    """Counts for the manifest, and the length of each prompt in order."""

    lengths: list[np.ndarray] = field(default_factory=lambda: [np.zeros(0, np.int64)])
    rejected: Counter[str] = field(default_factory=Counter)
    escaped: Counter[str] = field(default_factory=Counter)
    sums: Counter[str] = field(default_factory=Counter)
    rows: int = 0

    def manifest(self, edges: list[int]) -> dict[str, Any]:
        names = ("prompt_tokens", "truncated_rows", "escaped_rows", "escaped_tokens")
        return {
            "edges": edges, "bucket_rows": {str(edge): self.sums[str(edge)] for edge in edges},
            "reasons": self.rejected, "escaped_strings": self.escaped, **{name: self.sums[name] for name in names},
        }  # fmt: skip


def run(params: Params, paths: Paths) -> dict[str, Any]:
    """Build prompts for clean rows. Every row ends in `rows` or, with a reason, in `rejected`; returns the manifest."""
    setting, meter, tally = prepare(params, paths), Meter(), Tally()
    with (
        StageOutput(paths.prompts, "bucket") as out, ScratchTable(paths.work) as held,
        Progress("bucket", total=setting.rows, status=paths.work / "status.json") as progress,
    ):  # fmt: skip
        out.open("rows", schemas.PROMPTS)
        out.open("rejected", schemas.REJECTED)
        with meter.phase("tokenise"):
            for built, rejected, escaped in _built(setting.builder, paths, params.generate.max_new_tokens):
                held.append(built)
                out.write("rejected", rejected)
                tally.lengths.append(built["prompt_tokens"].to_numpy().astype(np.int64))
                tally.rejected.update(rejected["reason"].to_pylist())
                tally.escaped.update(escaped)
                progress.update(built.num_rows + rejected.num_rows)
        edges, bucket, position = plan(np.concatenate(tally.lengths), params.bucket)
        with meter.phase("write"):
            for built in held:
                part = slice(tally.rows, tally.rows + built.num_rows)
                table = built.append_column("bucket", pa.array(bucket[part], pa.int32())).append_column(
                    "position", pa.array(position[part])
                )
                out.write("rows", table)
                tally.rows += table.num_rows
                tally.sums.update(_sums(table))
        manifest = out.finish(
            inputs=setting.inputs, mixed=changed_since(setting.inputs, paths.root),
            rows=RowCount(into=setting.rows, out=tally.rows, rejected=tally.rejected.total()),
            params={"prompt": params.prompt, "bucket": params.bucket, "generate.max_new_tokens": params.generate.max_new_tokens,
                    "model.max_model_len": params.model.max_model_len},
            **tally.manifest(edges), **setting.about,
        )  # fmt: skip
    meter.save(paths.work, "bucket")
    return manifest


def prepare(params: Params, paths: Paths) -> Setting:
    """Read what prompts are made with: the checkpoint's tokenizer and template, examples, limits; check what it was trained on."""
    examples, described = read_examples(params.prompt, paths)
    inputs = [
        describe_upstream(paths.validated, paths.root), describe_upstream(paths.clean, paths.root),
        describe_file(paths.model_json, paths.relative(paths.model_json)), *described,
    ]  # fmt: skip
    model = read_json(paths.model_json, made_by="model")
    cleaned = read_manifest(paths.clean)
    folder = resolve_source(model["source"], paths)
    max_model_len = model["max_model_len"] if params.model.max_model_len == "auto" else params.model.max_model_len
    tokenizer = Tokenizer.load(folder)
    template = ChatTemplate.load(folder, date=params.prompt.date, kwargs=params.prompt.chat_template_kwargs)
    builder = PromptBuilder(params.prompt, tokenizer, template, max_model_len=max_model_len, examples=examples)
    about = {
        "chat": builder.uses_chat, "max_model_len": max_model_len, "tokenizer_digest": tokenizer.digest,
        "template_digest": template.digest if template and builder.uses_chat else None, "prompt_digest": builder.digest,
        "fingerprint": cleaned["fingerprint"], "warnings": check_preprocessor(folder, cleaned["row_fingerprint"], params.prompt),
    }  # fmt: skip
    return Setting(builder, inputs, int(cleaned["rows"]["out"]), about)


def check_preprocessor(folder: Path, row_fingerprint: str, params: PromptParams) -> list[str]:
    """Compare the preprocessor that a checkpoint carries with the one that cleaned the rows; warnings, or ModelError by params."""
    problem = mismatch(folder, row_fingerprint, Preprocessor)
    if problem is None:
        return []
    text = (
        f"{folder.name}/preprocessor.json: {problem}; what the model was trained on is not what it is given. Use the preprocess "
        "params that it was saved with, save it again, or set prompt.on_other_preprocessing to warn"
    )
    if params.on_other_preprocessing == "fail":
        raise ModelError(text)
    print(f"warning: {text}", file=sys.stderr)
    return [text]


def read_examples(params: PromptParams, paths: Paths) -> tuple[list[dict[str, str]], list[dict[str, Any]]]:
    """Few-shot pairs of params or of a JSONL file, and the file as an input of the manifest."""
    if not isinstance(params.few_shot, str):
        return [dict(pair) for pair in params.few_shot], []
    file = paths.root / params.few_shot
    described = describe_file(file, paths.relative(file))
    pairs = []
    for number, line in enumerate(file.read_text(encoding="utf-8-sig").splitlines(), 1):
        try:
            pair = json.loads(line) if line.strip() else None
        except ValueError as error:
            raise ParamsError(f"prompt.few_shot: {params.few_shot} line {number}: no JSON: {error}") from None
        if pair is not None and not (
            isinstance(pair, dict) and isinstance(pair.get("user"), str) and isinstance(pair.get("assistant"), str)
        ):
            raise ParamsError(f"prompt.few_shot: {params.few_shot} line {number}: expected an object with the texts user and assistant")
        pairs += [pair] if pair else []
    return pairs, [described]


def _built(builder: PromptBuilder, paths: Paths, max_new_tokens: int) -> Iterator[Built]:
    """Batches in order. Two are worked on at a time: one is rendered while the tokenizer, which needs no
    Python, encodes the other on all cores."""
    with ThreadPoolExecutor(2) as pool:
        waiting: deque[Future[Built]] = deque()
        for clean, validated in joined(paths):
            waiting.append(pool.submit(build_batch, builder, clean, validated, max_new_tokens))
            if len(waiting) > 2:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def joined(paths: Paths) -> Iterator[tuple[pa.Table, pa.Table]]:
    """Clean rows in batches, and the validated rows of the same ordinals; both tables lie in the order of ordinals."""
    validated = read_batches(paths.validated, columns=VALIDATED_COLUMNS, rows=BATCH_ROWS)
    held = next(validated, None)
    for clean in read_batches(paths.clean, columns=CLEAN_COLUMNS, rows=BATCH_ROWS):
        wanted = clean["ordinal"].to_numpy()
        parts: list[pa.Table] = []
        while held is not None:
            ordinals = held["ordinal"].to_numpy()
            parts.append(held.filter(pa.array(np.isin(ordinals, wanted, assume_unique=True))))
            if len(wanted) == 0 or ordinals[-1] > wanted[-1]:
                break
            held = next(validated, None)
        rows = pa.concat_tables(parts) if parts else None
        if rows is None or rows.num_rows != clean.num_rows:
            raise MissingInput(f"{paths.clean}: holds rows that {paths.validated} does not; run stage preprocess again")
        yield clean, rows


def build_batch(builder: PromptBuilder, clean: pa.Table, validated: pa.Table, max_new_tokens: int) -> Built:
    """Prompts (schema BUILT) and rejected rows of one batch, and the control-token strings that were encoded as text."""
    overrides = [json.loads(value) if value else {} for value in validated["overrides"].to_pylist()]
    rows = [
        PromptRow(
            id=row_id or "", text=text, messages=json.loads(messages) if messages is not None else None,
            fields=json.loads(meta) if meta and builder.reads_fields else {},
            system=own.get("system"), max_new_tokens=own.get("max_new_tokens", max_new_tokens),
        )
        for row_id, text, messages, meta, own in zip(
            validated["id"].to_pylist(), clean["text"].to_pylist(), clean["messages"].to_pylist(), validated["meta"].to_pylist(), overrides)
    ]  # fmt: skip
    made = builder.build(rows)
    good = [item for item in made if isinstance(item, Prompt)]
    keep = pa.array([isinstance(item, Prompt) for item in made], pa.bool_())
    built = pa.table(
        {
            "ordinal": clean["ordinal"].filter(keep),
            "prompt": pa.array([item.text for item in good], pa.string()),
            "token_ids": pa.array([item.token_ids for item in good], schemas.TOKEN_IDS),
            "prompt_tokens": pa.array([len(item.token_ids) for item in good], pa.int32()),
            "truncated_tokens": pa.array([item.truncated_tokens for item in good], pa.int32()),
            "escaped_tokens": pa.array([len(item.escaped) for item in good], pa.int32()),
            "overrides": validated["overrides"].filter(keep),
        },
        schema=BUILT,
    )
    lost = validated.filter(pa.array([isinstance(item, Refusal) for item in made], pa.bool_()))
    rejected = rejected_table(lost, "bucket", [(item.reason, item.detail) for item in made if isinstance(item, Refusal)])
    return built, rejected, Counter(string for item in good for string in item.escaped)


def _sums(table: pa.Table) -> Counter[str]:
    truncated, escaped = table["truncated_tokens"].to_numpy(), table["escaped_tokens"].to_numpy()
    edges, rows = np.unique(table["bucket"].to_numpy(), return_counts=True)
    return Counter(
        {
            **{str(edge): int(count) for edge, count in zip(edges, rows)},
            "prompt_tokens": int(table["prompt_tokens"].to_numpy().sum()),
            "truncated_rows": int((truncated > 0).sum()),
            "escaped_rows": int((escaped > 0).sum()),
            "escaped_tokens": int(escaped.sum()),
        }
    )
