"""Builds the tables of a whole night without a model: own questions in English and Chinese, answers good and bad on purpose."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.core import schemas
from pipeline.core.manifest import RowCount, StageOutput, write_json
from pipeline.core.paths import Paths

TOPICS = {
    "en": [
        "the harbour at low tide",
        "a bakery before dawn",
        "the old railway bridge",
        "mending a bicycle chain",
        "tea from the mountains",
    ],
    "zh": ["退潮时的港口", "清晨的面包房", "山上的旧铁桥", "修理自行车链条", "高山上的茶园"],
}
ASK = {"en": "Write one sentence about {topic} and name {n} colours.", "zh": "请用一句话描写{topic}，并说出{n}种颜色。"}
GOOD = {"en": "Here is {topic}, with {n} colours in the light.", "zh": "这里是{topic}，光里有{n}种颜色。"}
HOSTILE = '<script>document.title="owned"</script><img src=x onerror="document.title=\'owned\'">\u202eevil\u202c "q" \'s\' `b` {{7*7}}'
SENSITIVE = "蠢货"  # a word of the own small list
KINDS = ("good", "empty", "loop", "cut", "error", "refusal", "language", "json", "wrong", "sensitive", "copied", "unsure")


def question(n: int, lang: str) -> str:
    return ASK[lang].format(topic=TOPICS[lang][n % 5], n=n % 7 + 2)


def row(n: int, kind: str = "good", lang: str = "en", **extra: Any) -> dict[str, Any]:
    """One row as plain data; `kind` decides what its answer is like."""
    topic = TOPICS[lang][n % 5]
    good = GOOD[lang].format(topic=topic, n=n % 7 + 2)
    item: dict[str, Any] = {
        "id": f"r{n}", "text": question(n, lang), "reference": [good], "meta": {"task": "describe", "lang": lang},
        "language": lang, "answer": good, "finish": "stop", "scores": {"chrf": 100.0, "exact": 1.0}, "logprob": -0.1,
    }  # fmt: skip
    if kind == "empty":
        item |= {"answer": " \n", "scores": {"chrf": 0.0, "exact": 0.0, "empty": 1.0}}
    elif kind == "loop":
        item |= {
            "answer": "and so on it goes, " * 20,
            "finish": "length",
            "scores": {"chrf": 5.0, "exact": 0.0, "loop_share": 1.0, "loop_start": 0.0},
        }
    elif kind == "cut":
        item |= {"answer": good[: len(good) // 2], "finish": "length", "scores": {"chrf": 55.0, "exact": 0.0, "truncated": 1.0}}
    elif kind == "error":
        item |= {"answer": None, "finish": "error", "error": "non_finite_logits: layer 3, bfloat16", "scores": {}}
    elif kind == "refusal":
        item |= {"answer": "I cannot help with that.", "scores": {"chrf": 12.0, "exact": 0.0, "refusal": 1.0}}
    elif kind == "language":
        item |= {"answer": "Bonjour, voici une phrase.", "scores": {"chrf": 8.0, "exact": 0.0, "language_match": 0.0}}
    elif kind == "json":
        item |= {"text": f"Return JSON about {topic}.", "answer": '{"colour": "re', "scores": {"json_valid": 0.0}}
    elif kind == "wrong":
        item |= {"answer": "It was a quiet evening in another town.", "scores": {"chrf": 11.0, "exact": 0.0}}
    elif kind == "sensitive":
        item |= {"answer": f"{good} {SENSITIVE}", "scores": {"chrf": 90.0, "exact": 1.0, "sensitive": 1.0}}
    elif kind == "copied":
        item |= {"answer": item["text"], "scores": {"chrf": 20.0, "exact": 0.0, "copied_prompt": 1.0}}
    elif kind == "unsure":
        item |= {"logprob": -3.5}
    return item | extra


def build(
    root: Path, rows: list[dict[str, Any]], *, rejected: int = 0, prompts: bool = True, logprobs: bool = True, gate: Any = None
) -> Paths:
    """Write validated, clean, prompts, completions, scores, metrics.json and gate.json below `root`."""
    paths = Paths(root)
    ids = list(range(len(rows)))
    _put(paths.validated, "validate", schemas.VALIDATED, [
        {"ordinal": i, "id": r["id"], "source_file": r.get("file", "data/raw/a.jsonl"), "source_line": i + 1,
         "control": r.get("control", False),
         "text": r["text"], "reference": json.dumps(r["reference"], ensure_ascii=False) if r["reference"] else None,
         "meta": json.dumps(r["meta"], ensure_ascii=False), "overrides": "{}"}
        for i, r in zip(ids, rows)
    ], rejected=[
        {"ordinal": len(rows) + i, "id": f"bad{i}", "source_file": "data/raw/a.jsonl", "source_line": len(rows) + i + 1, "control": False,
         "stage": "validate", "reason": "bad_json", "detail": HOSTILE}
        for i in range(rejected)
    ])  # fmt: skip
    _put(paths.clean, "preprocess", schemas.CLEAN, [
        {"ordinal": i, "text": r["text"], "language": r["language"], "steps_applied": r.get("steps", []), "chars_in": len(r["text"]),
         "chars_out": len(r["text"])}
        for i, r in zip(ids, rows)
    ], rejected=[])  # fmt: skip
    if prompts:
        _put(paths.prompts, "bucket", schemas.PROMPTS, [
            {"ordinal": i, "prompt": f"<|user|>{r['text']}<|assistant|>", "token_ids": list(range(len(r["text"]))),
             "prompt_tokens": len(r["text"]),
             "bucket": 64 if len(r["text"]) <= 64 else 128, "position": i, "truncated_tokens": r.get("truncated", 0), "escaped_tokens": 0,
             "overrides": "{}"}
            for i, r in zip(ids, rows)
        ], rejected=[])  # fmt: skip
    completions = []
    for i, r in zip(ids, rows):
        answer = r["answer"]
        tokens = None if answer is None or not logprobs else r.get("token_ids") or [ord(letter) for letter in answer]
        values = None if tokens is None else np.full(len(tokens), r["logprob"], np.float32)
        completions.append({
            "ordinal": i, "sample": r.get("sample", 0), "text": answer, "token_ids": tokens, "finish_reason": r["finish"],
            "completion_tokens": len(answer or ""), "token_logprobs": values,
            "logprob_mean": r["logprob"] if values is not None else None, "logprob_min": r["logprob"] if values is not None else None,
            "error": r.get("error"),
        })  # fmt: skip
    _put(paths.completions, "generate", schemas.COMPLETIONS, completions, parts=True)
    _put(paths.scores, "evaluate", schemas.SCORES, signatures=dict.fromkeys(["truncated", *_names(rows)], "1"), rows=[
        {"ordinal": i, "sample": r.get("sample", 0), "metric": name, "value": value, "extracted": r["answer"]}
        for i, r in zip(ids, rows) for name, value in sorted(r["scores"].items())
    ])  # fmt: skip
    write_json(paths.metrics_json, {"metrics": _means(rows), "control": {}, "slices": {}, "rows": {"answered": len(rows)}})
    if gate is not None:
        write_json(paths.gate_json, gate)
    return paths


def mixed_night(count: int = 200, bad_share: float = 0.3, seed: int = 1) -> list[dict[str, Any]]:
    """Good rows and all kinds of bad ones, half English, half Chinese; nothing but chance decides which."""
    random_state = random.Random(seed)
    return [
        row(n, random_state.choice(KINDS[1:]) if random_state.random() < bad_share else "good", random_state.choice(["en", "zh"]))
        for n in range(count)
    ]


def _put(
    folder: Path, stage: str, schema: pa.Schema, rows: list[dict[str, Any]], *, rejected: Any = None, parts: bool = False, **extra: Any
) -> None:
    with StageOutput(folder, stage) as out:
        out.open("part" if parts else "rows", schema, parts=parts)
        out.write("part" if parts else "rows", pa.Table.from_pylist(rows, schema=schema))
        if rejected is not None:
            out.open("rejected", schemas.REJECTED)
            out.write("rejected", pa.Table.from_pylist(rejected, schema=schemas.REJECTED))
        out.finish(inputs=[], rows=RowCount(len(rows), len(rows)), params={}, **extra)


def _names(rows: list[dict[str, Any]]) -> list[str]:
    return sorted({name for r in rows for name in r["scores"]})


def _means(rows: list[dict[str, Any]]) -> dict[str, Any]:
    found = {}
    for name in _names(rows):
        values = [r["scores"][name] for r in rows if name in r["scores"]]
        mean = sum(values) / len(values)
        best = 100.0 if name == "chrf" else 1.0
        found[name] = {"mean": mean, "low": max(0.0, mean - 0.04 * best), "high": min(best, mean + 0.04 * best), "n_valid": len(values)}
    return found
