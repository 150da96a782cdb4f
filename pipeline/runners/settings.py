"""How each row is to be answered: the run's generation params, and what single rows override."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pipeline.core.errors import MissingInput, ParamsError
from pipeline.core.params import GenerateParams
from pipeline.engine.request import Sampling
from pipeline.runners.answer_key import ModelIdentity, Setting, setting_digest

# What a change of must not change an answer: kept out of keys and of manifests.
PERFORMANCE = frozenset({"max_running_rows", "page_size", "kv_memory", "reuse", "store", "checkpoint_every_s", "deadline"})
SAMPLING = tuple(Sampling.__dataclass_fields__)


class RowError(Exception):
    """This row cannot be answered as it asks; the text is "code: detail"."""


class Settings:
    """Turns a row's overrides into the setting of its answers; equal overrides are worked out once and numbered."""

    def __init__(self, params: GenerateParams, model: ModelIdentity, *, assets: Path, max_model_len: int) -> None:
        self._params, self._model, self._assets, self._max_model_len = params, model, assets, max_model_len
        self._wanted: dict[str, GenerateParams] = {}
        self._numbers: dict[tuple[str, int], int] = {}
        self._all: list[tuple[Setting, bytes, int]] = []

    def number(self, overrides: str, prompt_tokens: int) -> int:
        """The number of a row's setting. Raises RowError for values that make no sense.

        The room left in max_model_len bounds max_new_tokens, so that the key names what is really asked.
        """
        room = self._max_model_len - prompt_tokens
        if room < 1:
            raise RowError(f"prompt_too_long: {prompt_tokens} tokens leave no room in model.max_model_len {self._max_model_len}")
        if overrides not in self._wanted:
            self._wanted[overrides] = self._merged(overrides)
        wanted = self._wanted[overrides]
        max_new_tokens = min(wanted.max_new_tokens, room)
        if (overrides, max_new_tokens) not in self._numbers:
            self._numbers[overrides, max_new_tokens] = len(self._all)
            self._all.append(self._work_out(wanted, max_new_tokens))
        return self._numbers[overrides, max_new_tokens]

    def setting(self, number: int) -> Setting:
        return self._all[number][0]

    def digest(self, number: int) -> bytes:
        """The key's ingredients but prompt and sample, as 32 bytes."""
        return self._all[number][1]

    def samples(self, number: int) -> int:
        return self._all[number][2]

    def _work_out(self, params: GenerateParams, max_new_tokens: int) -> tuple[Setting, bytes, int]:
        values = {name: getattr(params, name) for name in SAMPLING} | {"max_new_tokens": max_new_tokens}
        schema = load_schema(params.json_schema, self._assets)
        version = metadata.version("llguidance") if schema is not None else None
        setting = Setting(Sampling(**values), params.stop, schema, version)
        return setting, setting_digest(self._model, setting), params.samples

    def _merged(self, overrides: str) -> GenerateParams:
        if overrides in ("", "{}"):
            return self._params
        wanted = {key: value for key, value in json.loads(overrides).items() if key in GenerateParams.model_fields}
        try:
            return GenerateParams.model_validate_json(json.dumps(self._params.model_dump(mode="json") | wanted))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise RowError(f"bad_override: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def answer_params(params: GenerateParams) -> dict[str, Any]:
    """The generation params that can change an answer, as plain data."""
    return {f"generate.{key}": value for key, value in params.model_dump(mode="json").items() if key not in PERFORMANCE}


def load_schema(value: str | dict[str, Any] | None, assets: Path) -> Any:
    """generate.json_schema as data: given in place, or as the name of a file under data/assets."""
    if not isinstance(value, str):
        return value
    file = schema_file(value, assets)
    if not file.is_file():
        raise MissingInput(f"generate.json_schema: {file}: no such file; schemas lie under data/assets")
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ParamsError(f"generate.json_schema: {file}: not JSON: {error}") from None


def schema_file(value: str, assets: Path) -> Path:
    """Where a schema named in params lies: below data/assets, with or without that prefix."""
    return assets / value.removeprefix("data/assets/")
