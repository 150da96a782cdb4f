"""Looking after the completion store: what is in it, and forgetting by age, size, model or row id."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.core.errors import UsageError
from pipeline.core.manifest import read_batches
from pipeline.core.paths import Paths
from pipeline.runners.answer_key import prompt_digest
from pipeline.runners.completion_store import CompletionStore, Part

DAY_S = 86_400.0
FORGOTTEN_S = 30 * DAY_S  # nobody goes on from answers that were begun so long ago
ORPHAN_S = 3_600.0  # a part without a record that is older than this was left by a crash


@dataclass(frozen=True)
class Gone:
    """What a pruning removed, or would remove."""

    answers: int
    parts: int
    bytes: int


def stats(store: CompletionStore) -> dict[str, Any]:
    """Counts by model (weights digest), and what lies about uselessly."""
    parts = store.parts()
    by_model: dict[str, list[Part]] = defaultdict(list)
    for part in parts:
        by_model[part.model].append(part)
    return {
        "folder": str(store.folder),
        **_sums(parts),
        "models": {model: _sums(items) for model, items in sorted(by_model.items())},
        "damaged_parts": len(list((store.folder / "commits").glob("*.damaged"))),
        "orphan_bytes": sum(file.stat().st_size for file in orphans(store)),
    }


def orphans(store: CompletionStore) -> list[Any]:
    """Files that no record names and nobody can still be writing."""
    named = {part.file for part in store.parts()}
    old = time.time() - ORPHAN_S
    files = [*(store.folder / "parts").iterdir(), *(store.folder / "runs").glob(".*.tmp")]
    return [file for file in files if file not in named and file.stat().st_mtime < old]


def prune(
    store: CompletionStore, *, older_than_days: float | None = None, max_bytes: int | None = None, model: str | None = None,
    prompts: set[bytes] | None = None, dry_run: bool = False,
) -> Gone:  # fmt: skip
    """Forget answers; the conditions are alternatives. prompts: digests of prompts, see prompts_of_id.

    Orphans and parts set aside as damaged go too, and unfinished answers: old ones, or all where prompts are given.
    """
    parts = store.parts()
    doomed = {part for part in parts if _is_doomed(part, older_than_days, model)}
    if max_bytes is not None:
        doomed |= set(_over(sorted(set(parts) - doomed, key=lambda part: -part.created_s), max_bytes))
    answers, size = sum(part.rows for part in doomed), sum(part.bytes for part in doomed)
    for part in parts:
        if part in doomed:
            if not dry_run:
                store.drop(part)
        elif prompts:
            answers += store.count_of(part, prompts) if dry_run else store.rewrite_without(part, prompts)
    if not dry_run:
        store.forget_begun(0.0 if prompts else FORGOTTEN_S)
        for file in [*orphans(store), *(store.folder / "commits").glob("*.damaged")]:
            file.unlink(missing_ok=True)
    return Gone(answers, len(doomed), size)


def prompts_of_id(row_id: str, paths: Paths) -> set[bytes]:
    """Digests of the prompts that a row id has in the tables of this root. Raises UsageError when it has none."""
    ordinals: list[int] = []
    for table in read_batches(paths.validated, columns=["ordinal", "id"]):
        ordinals += table.filter(pc.equal(table["id"], row_id))["ordinal"].to_pylist()
    found: set[bytes] = set()
    for table in read_batches(paths.prompts, columns=["ordinal", "token_ids"]):
        mine = table.filter(pc.is_in(table["ordinal"], pa.array(ordinals, pa.int64())))
        found |= {prompt_digest(token_ids) for token_ids in mine["token_ids"].to_pylist()}
    if not found:
        raise UsageError(f"--id {row_id}: no prompt of that row in {paths.prompts}; ids are compared letter by letter")
    return found


def _is_doomed(part: Part, older_than_days: float | None, model: str | None) -> bool:
    too_old = older_than_days is not None and part.created_s < time.time() - older_than_days * DAY_S
    return too_old or (model is not None and part.model.startswith(model))


def _over(newest_first: list[Part], max_bytes: int) -> list[Part]:
    """The oldest parts, as many as must go for the rest to fit."""
    kept = 0
    over = []
    for part in newest_first:
        kept += part.bytes
        if kept > max_bytes:
            over.append(part)
    return over


def _sums(parts: list[Part]) -> dict[str, Any]:
    return {
        "answers": sum(part.rows for part in parts),
        "tokens": sum(part.tokens for part in parts),
        "bytes": sum(part.bytes for part in parts),
        "parts": len(parts),
        "oldest_s": min((part.created_s for part in parts), default=None),
        "newest_s": max((part.created_s for part in parts), default=None),
    }
