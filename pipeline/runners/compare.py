"""Two runs side by side: which rows changed and why, and whether the scores moved by more than chance.

Rows are joined by id and sample. The cause of a changed answer is the first thing on its way that differs. The join
spills to disk, and changed rows are read in batches, so that memory does not grow with the rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
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
BATCH_ROWS = 4096


@dataclass(frozen=True)
class Comparison:
    """What differs between two runs as a whole, `differs` by cause, and how many rows each cause changed."""

    con: duckdb.DuckDBPyConnection
    differs: dict[str, list[str]]

    def counts(self) -> dict[str, int]:
        """Rows and samples: same, changed, only_a, only_b."""
        found = dict(self.con.execute("SELECT state, count(*) FROM pairs GROUP BY state").fetchall())
        return {state: found.get(state, 0) for state in ("same", "changed", "only_a", "only_b")}

    def causes(self) -> dict[str, int]:
        """Changed rows by cause, those that came up."""
        found = dict(self.con.execute("SELECT cause, count(*) FROM pairs WHERE state = 'changed' GROUP BY cause").fetchall())
        return {cause: found[cause] for cause in CAUSES if cause in found}

    def changed(self, most: int | None = None) -> Iterator[dict[str, Any]]:
        """One entry per row and sample whose answer differs, the first `most`, by id."""
        limit = "" if most is None else f"LIMIT {most}"
        rows = self.con.sql(f"SELECT * FROM pairs WHERE state = 'changed' ORDER BY control, id, sample {limit}")
        for batch in rows.to_arrow_reader(BATCH_ROWS):
            for row in batch.to_pylist():
                yield _explained(row)

    def metrics(self, *, control: bool, draws: int = 1000, seed: int = 0) -> dict[str, dict[str, Any]]:
        """By metric: means, difference B - A with its 95 % interval, rows higher, lower, equal; n over the rows both have."""
        names = self.con.execute("SELECT DISTINCT metric FROM scored WHERE control = ? ORDER BY metric", [control]).fetchall()
        query = "SELECT a, b FROM scored WHERE control = ? AND metric = ? ORDER BY a, b"
        columns = {name: self.con.execute(query, [control, name]).fetchnumpy() for (name,) in names}
        return {name: _paired(pair["a"], pair["b"], draws, seed) for name, pair in columns.items()}


@contextmanager
def compare_runs(a: Paths, b: Paths, scratch: Path) -> Iterator[Comparison]:
    """Compare two roots; what does not fit into memory spills to `scratch`. Raises MissingInput when a side has no completions."""
    differs = _differing(_facts(a), _facts(b))
    with connect(scratch) as con:
        for side, paths in (("a", a), ("b", b)):
            con.execute(f"CREATE SCHEMA {side}; USE {side}")
            create_views(con, paths)
        con.execute("USE main")
        con.execute(PAIRS, _run_causes(differs))
        con.execute(SCORED)
        yield Comparison(con, differs)


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


PAIRS = """
CREATE TEMP TABLE pairs AS
WITH a AS (SELECT v.id, v.control, c.sample, coalesce(v.text, v.messages) AS read, v.overrides, coalesce(k.text, k.messages) AS cleaned,
        p.token_ids AS asked, p.prompt, c.token_ids, c.text, c.error
    FROM a.completions c JOIN a.validated v USING (ordinal) LEFT JOIN a.clean k USING (ordinal) LEFT JOIN a.prompts p USING (ordinal)),
b AS (SELECT v.id, v.control, c.sample, coalesce(v.text, v.messages) AS read, v.overrides, coalesce(k.text, k.messages) AS cleaned,
        p.token_ids AS asked, p.prompt, c.token_ids, c.text, c.error
    FROM b.completions c JOIN b.validated v USING (ordinal) LEFT JOIN b.clean k USING (ordinal) LEFT JOIN b.prompts p USING (ordinal))
SELECT coalesce(a.id, b.id) AS id, coalesce(a.control, b.control) AS control, coalesce(a.sample, b.sample) AS sample,
    CASE WHEN a.id IS NULL THEN 'only_b' WHEN b.id IS NULL THEN 'only_a'
        WHEN a.token_ids IS NOT DISTINCT FROM b.token_ids AND a.text IS NOT DISTINCT FROM b.text
            AND (a.error IS NULL) = (b.error IS NULL) THEN 'same' ELSE 'changed' END AS state,
    CASE WHEN state <> 'changed' THEN NULL
        WHEN a.error IS NOT NULL OR b.error IS NOT NULL THEN 'failure'
        WHEN a.read IS DISTINCT FROM b.read THEN 'data'
        WHEN a.cleaned IS DISTINCT FROM b.cleaned THEN 'cleaning'
        WHEN a.asked IS DISTINCT FROM b.asked OR a.prompt IS DISTINCT FROM b.prompt THEN $other_prompt
        WHEN a.overrides IS DISTINCT FROM b.overrides THEN 'data'
        ELSE $same_prompt END AS cause,
    CASE WHEN state = 'changed' THEN a.token_ids END AS ids_a, CASE WHEN state = 'changed' THEN b.token_ids END AS ids_b,
    CASE WHEN state = 'changed' THEN a.text END AS text_a, CASE WHEN state = 'changed' THEN b.text END AS text_b,
    a.error AS error_a, b.error AS error_b
FROM a FULL OUTER JOIN b ON a.id = b.id AND a.control = b.control AND a.sample = b.sample
"""
SCORED = """
CREATE TEMP TABLE scored AS
WITH a AS (SELECT v.id, v.control, s.sample, s.metric, s.value FROM a.scores s JOIN a.validated v USING (ordinal)),
b AS (SELECT v.id, v.control, s.sample, s.metric, s.value FROM b.scores s JOIN b.validated v USING (ordinal))
SELECT control, metric, a.value AS a, b.value AS b FROM a JOIN b USING (id, control, sample, metric)
WHERE a.value IS NOT NULL AND b.value IS NOT NULL
"""


def _run_causes(differs: dict[str, list[str]]) -> dict[str, str]:
    """What explains a changed answer to another prompt, and to the same one, if nothing of its row does."""
    return {
        "other_prompt": "model" if "prompt" not in differs and "model" in differs else "prompt",
        "same_prompt": next((name for name in ("model", "params", "numerics") if name in differs), "unexplained"),
    }


def _explained(row: dict[str, Any]) -> dict[str, Any]:
    """One changed answer, and where it parts from the other."""
    ids_a, ids_b = row["ids_a"] or [], row["ids_b"] or []
    text_a, text_b = row["text_a"] or "", row["text_b"] or ""
    at = _parting(text_a, text_b)
    return {
        "id": row["id"], "control": row["control"], "sample": row["sample"], "cause": row["cause"],
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


def _paired(a: np.ndarray, b: np.ndarray, draws: int, seed: int) -> dict[str, Any]:
    mean, low, high, higher, lower, equal = paired_difference(a, b, draws, seed)
    moved = "higher" if low > 0 else "lower" if high < 0 else "no clear change"
    return {
        "a": rounded(a.mean()), "b": rounded(b.mean()), "difference": rounded(mean), "low": rounded(low), "high": rounded(high),
        "higher": higher, "lower": lower, "equal": equal, "n": len(a), "verdict": moved,
    }  # fmt: skip
