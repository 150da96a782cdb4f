"""From a checkpoint folder to something that answers: tokenizer, decoder, engine, and the identity that joins every key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.core.errors import ModelError
from pipeline.core.hashing import canonical_json
from pipeline.core.manifest import read_json
from pipeline.core.params import GenerateParams, ModelParams
from pipeline.core.paths import Paths
from pipeline.engine.engine import Engine, EngineSettings
from pipeline.engine.request import Constraint, Stopper
from pipeline.model.digests import weights_digest
from pipeline.model.source import resolve_source
from pipeline.model.weights import load_decoder
from pipeline.runners.answer_key import ModelIdentity
from pipeline.text.stopping import StopMatcher
from pipeline.text.tokenizer import Tokenizer

DIGESTS = ".work/file_digests.json"


@dataclass
class Answerer:
    """A loaded model with all that turns its token ids into text."""

    folder: Path
    tokenizer: Tokenizer
    engine: Engine
    identity: ModelIdentity
    max_model_len: int
    digests: Path  # cache of file digests
    _constraints: dict[str, Callable[[], Constraint]] = field(default_factory=dict)

    def changed_weights(self) -> list[str]:
        """["weights of NAME"] when the checkpoint's files are not what the answers' keys say any more."""
        return [] if weights_digest(self.folder, self.digests) == self.identity.weights_digest else [f"weights of {self.folder.name}"]

    def stopper(self, stops: tuple[str, ...]) -> Callable[[], Stopper] | None:
        """Makes a fresh watcher of stop strings for each answer; None when there are none."""
        return (lambda: StopMatcher(self.tokenizer, stops)) if stops else None

    def constraint(self, schema: Any) -> Callable[[], Constraint] | None:
        """Makes a fresh follower of a JSON schema for each answer; None without a schema."""
        if schema is None:
            return None
        from pipeline.text.constraint import make_constraint  # llguidance is needed by few runs

        text = canonical_json(schema)
        if text not in self._constraints:
            self._constraints[text] = make_constraint(self.tokenizer, schema, self.identity.stop_ids)
        return self._constraints[text]


def build(model: ModelParams, generate: GenerateParams, paths: Paths, *, max_batch_tokens: int) -> Answerer:
    """Load the checkpoint that model.json names and put the engine on it. Raises ModelError."""
    about = read_json(paths.model_json, made_by="model")
    folder = resolve_source(model.source, paths)
    tokenizer = Tokenizer.load(folder)
    decoder = load_decoder(folder, model)
    stop_ids = tuple(item["id"] for item in about["stop_ids"])
    engine = Engine(decoder, engine_settings(generate, max_batch_tokens), stop_ids)
    identity = ModelIdentity(
        weights_digest=about["weights_digest"], tokenizer_digest=about["tokenizer_digest"], template_digest=about["template_digest"],
        dtype=str(decoder.dtype).removeprefix("torch."), quantization=model.quantization, device_kind=decoder.device.type,
        numerics="; ".join(filter(None, (engine.numerics, decoder.config.length_rule))), stop_ids=stop_ids,
    )  # fmt: skip
    answerer = Answerer(folder, tokenizer, engine, identity, decoder.config.max_model_len, paths.main_root / DIGESTS)
    if answerer.changed_weights():
        raise ModelError(f"{folder}: the weights are not those that {paths.model_json.name} names; run `pipeline model` again")
    return answerer


def engine_settings(generate: GenerateParams, max_batch_tokens: int) -> EngineSettings:
    """The engine's own words for the params that change speed and memory only."""
    return EngineSettings(
        max_running_rows=None if generate.max_running_rows == "auto" else generate.max_running_rows,
        page_size=generate.page_size,
        kv_bytes=None if generate.kv_memory == "auto" else generate.kv_memory,
        max_step_tokens=max_batch_tokens,
    )
