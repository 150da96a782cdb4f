"""One row again, alone, under the params that its manifest recorded: the same tokens, or where they part."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from pipeline.core.errors import UsageError
from pipeline.core.manifest import read_manifest
from pipeline.core.params import GenerateParams, ModelParams
from pipeline.core.paths import Paths
from pipeline.engine.request import Completion, Request
from pipeline.runners.build import Answerer, build
from pipeline.runners.canary import ask_alone, compare
from pipeline.runners.checkpoint import with_imports
from pipeline.runners.settings import RowError, Settings
from pipeline.runners.trace import Life


def recorded_params(paths: Paths) -> tuple[ModelParams, GenerateParams]:
    """What data/completions was made with."""
    params = read_manifest(paths.completions)["params"]
    if "model" not in params:
        raise UsageError(f"{paths.completions}: these answers were made elsewhere; there is no model to ask again")
    generate = {key.removeprefix("generate."): value for key, value in params.items() if key.startswith("generate.")}
    return ModelParams.model_validate_json(json.dumps(params["model"])), GenerateParams.model_validate_json(json.dumps(generate))


def replay(lives: list[Life], paths: Paths) -> list[dict[str, Any]]:
    """For each answer of these rows: {ordinal, sample, equal, first_divergence, largest_logprob_gap, tokens, text, error}."""
    model, generate = recorded_params(paths)
    answerer = build(model, generate, with_imports(paths), max_batch_tokens=_batch_tokens(paths))
    settings = Settings(generate, answerer.identity, assets=paths.assets, max_model_len=answerer.max_model_len)
    found = []
    for life in lives:
        for answer in life.completions if life.prompt else ():
            try:
                alone = ask(answerer, settings, life, answer["sample"])
            except RowError as error:
                alone = Completion(life.ordinal, answer["sample"], (), (), "error", error=str(error))
            recorded = {"token_ids": answer["token_ids"] or [], "token_logprobs": answer["token_logprobs"] or []}
            found.append({"ordinal": life.ordinal, "sample": answer["sample"], **compare(recorded, alone)})
            found[-1]["text"] = answerer.tokenizer.decode(list(alone.token_ids))
    return found


def ask(answerer: Answerer, settings: Settings, life: Life, sample: int) -> Completion:
    """One answer with nothing else in the engine."""
    assert life.prompt is not None
    token_ids = life.prompt["token_ids"]
    setting = settings.setting(settings.number(life.prompt["overrides"] or "{}", len(token_ids)))
    request = Request(
        id=life.ordinal, token_ids=tuple(token_ids), sampling=setting.sampling, sample=sample,
        stopper=answerer.stopper(setting.stop), constraint=answerer.constraint(setting.json_schema),
    )  # fmt: skip
    return ask_alone(answerer.engine, request)


def replay_line(item: dict[str, Any], say: Callable[[float], str] = "{:.2g}".format) -> str:
    """One line for people."""
    where = f"replay        sample {item['sample']}: {item['tokens']} tokens"
    if item["error"]:
        return f"{where}, failed: {item['error']}"
    if item["equal"]:
        return f"{where}, all equal; largest logprob difference {say(item['largest_logprob_gap'])}"
    return f"{where}, the first that differs is number {item['first_divergence']} (from 0)"


def _batch_tokens(paths: Paths) -> int:
    return int(read_manifest(paths.prompts)["params"]["bucket"]["max_batch_tokens"])
