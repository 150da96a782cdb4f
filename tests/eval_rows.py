"""Small finished runs written by hand: the four tables that evaluate reads."""

import json

import pyarrow as pa

from pipeline.core import schemas
from pipeline.core.manifest import RowCount, StageOutput
from pipeline.core.paths import Paths


def write_run(root, rows, rejected=0):
    """rows: dicts with answer, and if wanted reference, meta, control, prompt, language, finish_reason, sample, steps, bucket, logprobs."""
    paths = Paths(root)
    unique = list({row.get("ordinal", index): {"ordinal": index, **row} for index, row in enumerate(rows)}.values())
    _write(paths.validated, "validate", "rows", schemas.VALIDATED, [_validated(row) for row in unique], rejected)
    _write(paths.clean, "preprocess", "rows", schemas.CLEAN, [_clean(row) for row in unique])
    _write(paths.prompts, "bucket", "rows", schemas.PROMPTS, [_prompt(row) for row in unique])
    answers = [_completion({"ordinal": index, **row}) for index, row in enumerate(rows)]
    _write(paths.completions, "generate", "part", schemas.COMPLETIONS, answers)
    return paths


def _write(folder, stage, name, schema, rows, rejected=0):
    with StageOutput(folder, stage) as out:
        out.open(name, schema, parts=name == "part")
        out.write(name, pa.Table.from_pylist(rows, schema=schema))
        if stage != "generate":
            out.open("rejected", schemas.REJECTED)
            lost = [{"ordinal": 10_000 + i, "stage": stage, "reason": "too_short", "control": False} for i in range(rejected)]
            out.write("rejected", pa.Table.from_pylist(lost, schema=schemas.REJECTED))
        failed = sum(row.get("finish_reason") == "error" for row in rows)
        out.finish(inputs=[], rows=RowCount(len(rows) + rejected, len(rows) - failed, rejected, failed), params={})


def _validated(row):
    reference = row.get("reference")
    references = reference if isinstance(reference, list) or reference is None else [reference]
    return {
        "ordinal": row["ordinal"], "id": row.get("id", f"row-{row['ordinal']}"), "source_file": "data/raw/a.jsonl",
        "source_line": row["ordinal"] + 1, "control": row.get("control", False), "text": row.get("prompt", "Say something."),
        "reference": None if references is None else json.dumps(references, ensure_ascii=False),
        "meta": json.dumps(row.get("meta", {}), ensure_ascii=False), "overrides": json.dumps(row.get("overrides", {})),
    }  # fmt: skip


def _clean(row):
    text = row.get("prompt", "Say something.")
    return {
        "ordinal": row["ordinal"], "text": text, "language": row.get("language", "en"), "steps_applied": row.get("steps", []),
        "chars_in": len(text), "chars_out": len(text),
    }  # fmt: skip


def _prompt(row):
    text = row.get("prompt", "Say something.")
    return {
        "ordinal": row["ordinal"], "prompt": text, "token_ids": [1] * len(text.split()), "prompt_tokens": len(text.split()),
        "bucket": row.get("bucket", 32), "position": row["ordinal"], "truncated_tokens": 0, "escaped_tokens": 0,
        "overrides": json.dumps(row.get("overrides", {})),
    }  # fmt: skip


def _completion(row):
    failed = row.get("finish_reason") == "error"
    logprobs = row.get("logprobs")
    return {
        "ordinal": row["ordinal"], "sample": row.get("sample", 0), "text": None if failed else row["answer"],
        "token_ids": [], "finish_reason": row.get("finish_reason", "stop"), "completion_tokens": len((row.get("answer") or "").split()),
        "token_logprobs": logprobs, "logprob_mean": sum(logprobs) / len(logprobs) if logprobs else None,
        "logprob_min": min(logprobs) if logprobs else None, "error": "too_long: 900 tokens" if failed else None,
    }  # fmt: skip
