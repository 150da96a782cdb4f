"""Two runs side by side: which rows changed and why, and whether the scores moved by more than chance.

Rows are joined by id and sample. The cause of a changed answer is the first thing on its way that differs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import duckdb
import numpy as np

from pipeline.core.manifest import read_json, read_manifest
from pipeline.core.paths import Paths
from pipeline.evaluation.aggregate import paired_difference, rounded
from pipeline.tables.query import connect, create_views

CAUSES = ("data", "cleaning", "prompt", "model", "params", "numerics", "failure", "unexplained")
MODEL_KEYS = ("weights_digest", "tokenizer_digest", "template_digest", "dtype", "quantization", "stop_ids")
NUMERIC_KEYS = ("device_kind", "numerics")
CONTEXT_CHARS = 60


@dataclass
class Comparison:
    """changed: one entry per row and sample whose answer differs. metrics: paired differences, B minus A."""

    counts: dict[str, int]
    causes: dict[str, int]
    differs: dict[str, list[str]]
    changed: list[dict[str, Any]]
    metrics: dict[str, dict[str, Any]]
    control: dict[str, dict[str, Any]] = field(default_factory=dict)


def compare_runs(a: Paths, b: Paths, *, draws: int = 1000, seed: int = 0) -> Comparison:
    """Compare two roots. Raises MissingInput when one of them has no completions."""
    facts = {side: _facts(paths) for side, paths in (("a", a), ("b", b))}
    differs = _differing(facts["a"], facts["b"])
    with connect() as con:
        for side, paths in (("a", a), ("b", b)):
            con.execute(f"CREATE SCHEMA {side}; USE {side}")
            create_views(con, paths)
        con.execute("USE main")
        rows = _rows(con)
        changed = [_explained(row, differs) for row in rows if row["state"] == "changed"]
        states = Counter(row["state"] for row in rows)
        scores = _scores(con)
    counts = {state: states.get(state, 0) for state in ("same", "changed", "only_a", "only_b")}
    causes = Counter(row["cause"] for row in changed)
    return Comparison(
        counts, {cause: causes[cause] for cause in CAUSES if causes[cause]}, differs, changed,
        _paired([s for s in scores if not s[0]], draws, seed), _paired([s for s in scores if s[0]], draws, seed),
    )  # fmt: skip


def _facts(paths: Paths) -> dict[str, Any]:
    """What can differ between two runs as a whole."""
    completions = read_manifest(paths.completions)
    clean = read_manifest(paths.clean)
    identity = completions.get("identity", {})
    model = read_json(paths.model_json, made_by="model") if paths.model_json.is_file() else {}
    return {
        "cleaning": {"fingerprint": clean.get("fingerprint"), "params": clean["params"]},
        "prompt": {"params": {k: v for k, v in read_manifest(paths.prompts)["params"].items() if k.split(".")[0] in ("prompt",)}},
        "model": {key: identity.get(key) for key in MODEL_KEYS} | {"source": model.get("source")},
        "params": {key: value for key, value in completions["params"].items() if key.startswith("generate.")},
        "numerics": {key: identity.get(key) for key in NUMERIC_KEYS},
    }


def _differing(a: dict[str, Any], b: dict[str, Any]) -> dict[str, list[str]]:
    """Names of what differs, by cause, as "key: from -> to"."""
    found: dict[str, list[str]] = {}
    for cause in a:
        names = [f"{key}: {_word(x)} -> {_word(y)}" for key, x, y in _leaves(a[cause], b[cause])]
        if names:
            found[cause] = names
    return found


def _leaves(a: Any, b: Any, path: str = "") -> list[tuple[str, Any, Any]]:
    if isinstance(a, dict) and isinstance(b, dict):
        keys = sorted(a.keys() | b.keys())
        return [leaf for key in keys for leaf in _leaves(a.get(key), b.get(key), f"{path}.{key}" if path else key)]
    return [] if a == b else [(path, a, b)]


def _word(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:12]}...{text[-6:]}"


ROWS = """
WITH a AS (SELECT v.id, v.control, c.sample, v.source_file, v.source_line, coalesce(v.text, v.messages) AS read, v.overrides,
        coalesce(k.text, k.messages) AS cleaned, p.token_ids AS asked, p.prompt, c.token_ids, c.text, c.error, c.finish_reason
    FROM a.completions c JOIN a.validated v USING (ordinal) LEFT JOIN a.clean k USING (ordinal) LEFT JOIN a.prompts p USING (ordinal)),
b AS (SELECT v.id, v.control, c.sample, v.source_file, v.source_line, coalesce(v.text, v.messages) AS read, v.overrides,
        coalesce(k.text, k.messages) AS cleaned, p.token_ids AS asked, p.prompt, c.token_ids, c.text, c.error, c.finish_reason
    FROM b.completions c JOIN b.validated v USING (ordinal) LEFT JOIN b.clean k USING (ordinal) LEFT JOIN b.prompts p USING (ordinal))
SELECT coalesce(a.id, b.id) AS id, coalesce(a.control, b.control) AS control, coalesce(a.sample, b.sample) AS sample,
    CASE WHEN a.id IS NULL THEN 'only_b' WHEN b.id IS NULL THEN 'only_a'
        WHEN a.token_ids IS NOT DISTINCT FROM b.token_ids AND a.text IS NOT DISTINCT FROM b.text
            AND (a.error IS NULL) = (b.error IS NULL) THEN 'same' ELSE 'changed' END AS state,
    a.read IS DISTINCT FROM b.read AS data, a.cleaned IS DISTINCT FROM b.cleaned AS cleaning,
    a.asked IS DISTINCT FROM b.asked OR a.prompt IS DISTINCT FROM b.prompt AS prompt, a.overrides IS DISTINCT FROM b.overrides AS overrides,
    a.error AS error_a, b.error AS error_b,
    CASE WHEN state = 'changed' THEN a.token_ids END AS ids_a, CASE WHEN state = 'changed' THEN b.token_ids END AS ids_b,
    CASE WHEN state = 'changed' THEN a.text END AS text_a, CASE WHEN state = 'changed' THEN b.text END AS text_b
FROM a FULL OUTER JOIN b ON a.id = b.id AND a.control = b.control AND a.sample = b.sample
ORDER BY control, id, sample
"""


def _rows(con: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
    cursor = con.execute(ROWS)
    names = [item[0] for item in cursor.description]
    return [dict(zip(names, row)) for row in cursor.fetchall()]


def _explained(row: dict[str, Any], differs: dict[str, list[str]]) -> dict[str, Any]:
    """The cause of one changed answer, and where it parts from the other."""
    if row["error_a"] is not None or row["error_b"] is not None:
        cause = "failure"
    elif row["data"]:
        cause = "data"
    elif row["cleaning"]:
        cause = "cleaning"
    elif row["prompt"]:
        cause = "model" if "prompt" not in differs and "model" in differs else "prompt"
    elif row["overrides"]:
        cause = "data"
    else:
        cause = next((name for name in ("model", "params", "numerics") if name in differs), "unexplained")
    ids_a, ids_b = row["ids_a"] or [], row["ids_b"] or []
    text_a, text_b = row["text_a"] or "", row["text_b"] or ""
    at = _parting(text_a, text_b)
    return {
        "id": row["id"], "control": row["control"], "sample": row["sample"], "cause": cause,
        "first_differing_token": _parting(ids_a, ids_b) if ids_a or ids_b else None,
        "a": row["error_a"] or _around(text_a, at), "b": row["error_b"] or _around(text_b, at),
    }  # fmt: skip


def _parting(a: Any, b: Any) -> int:
    """Place of the first difference."""
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def _around(text: str, at: int) -> str:
    start = max(0, at - CONTEXT_CHARS // 3)
    piece = " ".join(text[start : at + CONTEXT_CHARS].split())
    return f"{'...' if start else ''}{piece}{'...' if at + CONTEXT_CHARS < len(text) else ''}"


def _scores(con: duckdb.DuckDBPyConnection) -> list[tuple[bool, str, float, float]]:
    return con.execute(
        """WITH a AS (SELECT v.id, v.control, s.sample, s.metric, s.value FROM a.scores s JOIN a.validated v USING (ordinal)),
        b AS (SELECT v.id, v.control, s.sample, s.metric, s.value FROM b.scores s JOIN b.validated v USING (ordinal))
        SELECT control, metric, a.value, b.value FROM a JOIN b USING (id, control, sample, metric)
        WHERE a.value IS NOT NULL AND b.value IS NOT NULL ORDER BY control, metric, id, sample"""
    ).fetchall()


def _paired(scores: list[tuple[bool, str, float, float]], draws: int, seed: int) -> dict[str, dict[str, Any]]:
    """By metric: means, difference B - A with its 95 % interval, rows higher, lower, equal; n over the rows both have."""
    found: dict[str, dict[str, Any]] = {}
    for metric in sorted({item[1] for item in scores}):
        a = np.array([item[2] for item in scores if item[1] == metric], np.float64)
        b = np.array([item[3] for item in scores if item[1] == metric], np.float64)
        mean, low, high, higher, lower, equal = paired_difference(a, b, draws, seed)
        moved = "higher" if low > 0 else "lower" if high < 0 else "no clear change"
        found[metric] = {
            "a": rounded(a.mean()), "b": rounded(b.mean()), "difference": rounded(mean), "low": rounded(low), "high": rounded(high),
            "higher": higher, "lower": lower, "equal": equal, "n": len(a), "verdict": moved,
        }  # fmt: skip
    return found
