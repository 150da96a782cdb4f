"""Stage generate: prompts in, completions out. What the store already answered is not generated again."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.core import schemas
from pipeline.core.hashing import sha256_json
from pipeline.core.manifest import (
    RowCount,  # fmt: skip
    StageOutput,
    changed_since,
    describe_file,
    describe_upstream,
    plain,
    read_batches,
    read_manifest,
)
from pipeline.core.params import GenerateParams, Params
from pipeline.core.paths import Paths
from pipeline.core.progress import Progress
from pipeline.core.telemetry import Meter
from pipeline.runners.build import Answerer, build
from pipeline.runners.canary import canaries
from pipeline.runners.completion_rows import CompletionRows
from pipeline.runners.completion_store import CompletionStore
from pipeline.runners.engine_telemetry import note_engine, note_outcome
from pipeline.runners.generation import Job, generate_missing
from pipeline.runners.interruption import Interruption
from pipeline.runners.lines import plan_lines
from pipeline.runners.runs import Run
from pipeline.runners.settings import Settings, answer_params, schema_file

COLUMNS = ["ordinal", "position", "token_ids", "overrides"]


def run(params: Params, paths: Paths) -> dict[str, Any]:
    """Answer every prompt: from the store where its key is known, else by the engine. Rows fail, none is rejected.

    Raises Interrupted after saving on a signal; running again goes on from what the store has.
    """
    inputs = [describe_file(paths.model_json, "models/model.json"), describe_upstream(paths.prompts, paths.root)]
    inputs += [describe_file(file, paths.relative(file)) for file in _assets(params.generate, paths)]
    meter = Meter()
    with Interruption() as interruption, StageOutput(paths.completions, "generate") as out:
        with meter.phase("load"):
            answerer = build(params.model, params.generate, paths, max_batch_tokens=_batch_tokens(paths))
        run = Run(paths.store(params.generate.store), _wanted(inputs, params))
        job = _job(params.generate, answerer, run, interruption, paths)
        prompts = partial(read_batches, paths.prompts, columns=COLUMNS)
        lines = plan_lines(prompts(), job.settings)
        with Progress("generate", total=lines.table.num_rows, status=paths.work / "status.json") as progress:
            try:
                outcome = generate_missing(job, lines, prompts(), progress, meter)
            finally:
                note_engine(meter, answerer.engine.stats())
                meter.save(paths.work, "generate")
        job.store.merge(run.name)
        rows = CompletionRows(lines, job.settings, answerer, outcome.errors, outcome.not_reached)
        out.open("part", schemas.COMPLETIONS, parts=True)
        with meter.phase("detokenise and write"):
            for table in rows.tables(job.store):
                out.write("part", table)
        manifest = out.finish(
            inputs=inputs,
            rows=RowCount(rows.total, rows.total - rows.failed, failed=rows.failed),
            params={"model": params.model, **answer_params(params.generate)},
            mixed=[*changed_since(inputs, paths.root), *answerer.changed_weights()],
            identity=asdict(answerer.identity),
            completion_tokens=rows.tokens,
            canaries=canaries(job, lines, prompts),
        )
    note_outcome(meter, outcome.generated_rows, outcome.generated_tokens, outcome.reused_rows)
    meter.save(paths.work, "generate")
    if not rows.failed:
        run.done()
    if interruption.stop():
        raise interruption.error("all answers are written; the same command goes on with the next stage")
    return manifest


def _job(params: GenerateParams, answerer: Answerer, run: Run, interruption: Interruption, paths: Paths) -> Job:
    store = CompletionStore(paths.store(params.store), run=run.name if params.reuse == "none" else None)
    settings = Settings(params, answerer.identity, assets=paths.assets, max_model_len=answerer.max_model_len)
    return Job(answerer, settings, store, run.name, params.checkpoint_every_s, interruption, _deadline_s(params.deadline, datetime.now()))


def _wanted(inputs: list[dict[str, Any]], params: Params) -> str:
    """What this run answers and how; the same again after a kill means the same run."""
    return sha256_json({"inputs": inputs, "model": plain(params.model), "generate": answer_params(params.generate)})


def _assets(params: GenerateParams, paths: Paths) -> list[Path]:
    return [schema_file(params.json_schema, paths.assets)] if isinstance(params.json_schema, str) else []


def _batch_tokens(paths: Paths) -> int:
    """The prefill budget that the buckets were planned for."""
    return int(read_manifest(paths.prompts)["params"]["bucket"]["max_batch_tokens"])


def _deadline_s(clock: str | None, now: datetime) -> float | None:
    """The next time the clock shows HH:MM, in seconds of time.time()."""
    if clock is None:
        return None
    hour, _, minute = clock.partition(":")
    at = now.replace(hour=int(hour), minute=int(minute), second=0, microsecond=0)
    return (at if at > now else at + timedelta(days=1)).timestamp()
