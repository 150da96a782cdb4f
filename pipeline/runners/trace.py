"""One row's whole life: where it came from, what was done to it, what the model saw and said, how that was judged."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import duckdb

from pipeline.core.errors import UsageError
from pipeline.core.manifest import read_json, read_manifest
from pipeline.core.paths import Paths
from pipeline.tables.query import connect, create_views
from pipeline.text.offsets import offset_map

SHOWN_CHARS = 600
SHOWN_CHANGES = 8


@dataclass
class Life:
    """Everything the tables say about one ordinal; a list is empty where the row never came that far."""

    ordinal: int
    validated: dict[str, Any] | None
    clean: dict[str, Any] | None
    prompt: dict[str, Any] | None
    rejected: list[dict[str, Any]]
    completions: list[dict[str, Any]]
    scores: list[dict[str, Any]]
    bad_cases: list[dict[str, Any]]


def lives(row_id: str, paths: Paths) -> list[Life]:
    """Every row with this id, or the row at FILE:LINE. Raises UsageError when there is none."""
    with connect(paths.work / "tmp") as con:
        create_views(con, paths)
        where = "id = $1 OR source_file || ':' || source_line = $1"
        ordinals = con.execute(
            f"SELECT ordinal FROM validated WHERE {where} UNION SELECT ordinal FROM rejected WHERE {where} ORDER BY 1", [row_id]
        ).fetchall()
        if not ordinals:
            raise UsageError(f"{row_id}: no row has this id; ids are compared letter by letter, FILE:LINE works too{_near(con, row_id)}")
        return [_life(con, ordinal) for (ordinal,) in ordinals]


def provenance(paths: Paths) -> dict[str, Any]:
    """What made the answers of this root: digests and params, from the manifests that are there."""
    found: dict[str, Any] = {}
    if paths.model_json.is_file():
        model = read_json(paths.model_json, made_by="model")
        found["model"] = {key: model.get(key) for key in ("source", "family", "weights_digest", "tokenizer_digest", "template_digest")}
    for name, folder, keys in (
        ("preprocess", paths.clean, ("fingerprint", "params", "code")),
        ("prompt", paths.prompts, ("prompt_digest", "params", "code")),
        ("generate", paths.completions, ("identity", "params", "code")),
    ):
        if (folder / "manifest.json").is_file():
            manifest = read_manifest(folder)
            found[name] = {key: manifest[key] for key in keys if key in manifest}
    return found


def as_text(life: Life, made_by: dict[str, Any]) -> list[str]:
    """A screen for people."""
    row = life.validated or (life.rejected[0] if life.rejected else {})
    control = "   control" if row.get("control") else ""
    lines = [f"row {row.get('id')}   ordinal {life.ordinal}   {row.get('source_file')}:{row.get('source_line')}{control}"]
    lines += _read(life) + _cleaned(life, made_by)
    lines += [f"REJECTED      by {reject['stage']}: {reject['reason']}: {reject['detail']}" for reject in life.rejected]
    lines += _asked(life) + (_made_by(made_by) if life.completions else [])
    return lines + [line for answer in life.completions for line in _answer(answer, life)]


def _read(life: Life) -> list[str]:
    if not life.validated:
        return []
    rest = [(name, life.validated[name]) for name in ("reference", "meta", "overrides") if life.validated.get(name) not in (None, "{}")]
    text = life.validated.get("text") or life.validated.get("messages")
    return [*_block("read", text), *(f"  {name:<11} {_short(value)}" for name, value in rest)]


def _cleaned(life: Life, made_by: dict[str, Any]) -> list[str]:
    row = life.clean
    if not row:
        return []
    steps = ", ".join(row["steps_applied"] or []) or "none changed it"
    fingerprint = _digest(made_by.get("preprocess", {}).get("fingerprint"))
    head = f"cleaned       {row['chars_in']} to {row['chars_out']} characters, language {row['language']}, steps: {steps}"
    return [head, f"  fingerprint {fingerprint}", *_changes((life.validated or {}).get("text"), row["text"])]


def _changes(before: str | None, after: str | None) -> list[str]:
    """What cleaning replaced, with offsets in characters before and after."""
    if before is None or after is None:
        return []
    found = offset_map(before, after).changes
    lines = []
    for c in found[:SHOWN_CHANGES]:
        old, new = (_short(ascii(text), keep_lines=True) for text in (before[c.start : c.end], after[c.new_start : c.new_end]))
        lines.append(f"  {c.start}:{c.end} to {c.new_start}:{c.new_end}   {old} to {new}")
    return lines + [f"  and {len(found) - SHOWN_CHANGES:,} more changes"] * (len(found) > SHOWN_CHANGES)


def _asked(life: Life) -> list[str]:
    row = life.prompt
    if not row:
        return []
    where = f"{row['prompt_tokens']} tokens, bucket {row['bucket']}, position {row['position']}"
    rest = f"{row['truncated_tokens'] or 0} cut, {row['escaped_tokens'] or 0} control strings as text"
    return [f"prompt        {where}, {rest}", *_block("", row["prompt"])]


def _made_by(made_by: dict[str, Any]) -> list[str]:
    model, identity = made_by.get("model"), made_by.get("generate", {}).get("identity", {})
    if not model:
        return []
    weights, tokenizer = _digest(model.get("weights_digest")), _digest(model.get("tokenizer_digest"))
    kind = (
        f"{identity.get('dtype')}, quantisation {identity.get('quantization')}, {identity.get('device_kind')}, {identity.get('numerics')}"
    )
    return [
        f"model         {model.get('source')} ({model.get('family')}), weights {weights}, tokenizer {tokenizer}",
        f"  arithmetic  {kind}",
        f"  params      {_generate_params(made_by)}",
    ]


def _answer(answer: dict[str, Any], life: Life) -> list[str]:
    if answer["error"]:
        return [f"FAILED        sample {answer['sample']}: {answer['error']}"]
    mean, low = answer["logprob_mean"], answer["logprob_min"]
    sure = f", logprob mean {mean:.3f}, least {low:.3f}" if mean is not None else ""
    detail = f" ({answer['finish_detail']})" if answer["finish_detail"] else ""
    lines = [f"answer        sample {answer['sample']}: {answer['completion_tokens']} tokens, {answer['finish_reason']}{detail}{sure}"]
    lines += _block("", answer["text"])
    scores = [s for s in life.scores if s["sample"] == answer["sample"] and s["value"] is not None]
    if scores:
        lines.append("scores        " + ", ".join(f"{s['metric']} {s['value']:.3g}" for s in scores))
    for case in life.bad_cases:
        if case["sample"] == answer["sample"]:
            lines.append(f"bad case      {case['rule']} ({case['cause']}, severity {case['severity']:.2f}): {_short(case['evidence'])}")
    return lines


def _life(con: duckdb.DuckDBPyConnection, ordinal: int) -> Life:
    def rows(view: str, order: str = "ordinal") -> list[dict[str, Any]]:
        relation = con.execute(f"SELECT * FROM {view} WHERE ordinal = $1 ORDER BY {order}", [ordinal])
        names = [item[0] for item in relation.description]
        return [dict(zip(names, row)) for row in relation.fetchall()]

    def one(view: str) -> dict[str, Any] | None:
        return next(iter(rows(view)), None)

    return Life(
        ordinal, one("validated"), one("clean"), one("prompts"), rows("rejected"), rows("completions", "sample"),
        rows("scores", "sample, metric"), rows("bad_cases", "sample, rank, rule"),
    )  # fmt: skip


def _near(con: duckdb.DuckDBPyConnection, row_id: str) -> str:
    query = "SELECT id FROM validated WHERE id IS NOT NULL ORDER BY levenshtein(id, $1), ordinal LIMIT 1"
    found = con.execute(query, [row_id]).fetchone()
    return f"; did you mean {found[0]}?" if found else ""


def _generate_params(made_by: dict[str, Any]) -> str:
    params = made_by.get("generate", {}).get("params", {})
    own = {key.removeprefix("generate."): value for key, value in params.items() if key.startswith("generate.")}
    return ", ".join(f"{key} {json.dumps(value, ensure_ascii=False)}" for key, value in own.items() if value not in (None, [], False))


def _block(title: str, text: str | None) -> list[str]:
    lines = [f"{title}"] if title else []
    return lines + [f"  | {line}" for line in _short(text, keep_lines=True).split("\n")]


def _short(value: Any, keep_lines: bool = False) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = text if keep_lines else " ".join(text.split())
    if len(text) <= SHOWN_CHARS:
        return text
    return f"{text[: SHOWN_CHARS - 100]} [... {len(text) - SHOWN_CHARS:,} characters ...] {text[-100:]}"


def _digest(value: str | None) -> str:
    return f"{value[:12]}" if value else "-"
