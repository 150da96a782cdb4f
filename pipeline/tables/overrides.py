"""Generation values that a row sets for itself: checked by the same types as params.yaml."""

from __future__ import annotations

from typing import Any

import orjson
from pydantic import ValidationError

from pipeline.core.params import GenerateParams
from pipeline.tables import json_text
from pipeline.tables.records import BadRow


def check_overrides(values: dict[str, Any], textual: bool) -> dict[str, Any]:
    """The values in their canonical types, nulls left out. textual: CSV, where numbers come as text. Raises BadRow.

    values: names of data.overrides (or of an OpenAI request) to what the row holds.
    """
    given = {name: _from_text(name, value) if textual else value for name, value in values.items()}
    given = {name: value for name, value in given.items() if value is not None and value != ""}
    checked: dict[str, Any] = {}
    if "system" in given:
        checked["system"] = _text(given.pop("system"))
    if "json_schema" in given:
        checked["json_schema"] = _schema(given.pop("json_schema"))
    if isinstance(given.get("stop"), str):
        given["stop"] = [given["stop"]]
    if isinstance(given.get("seed"), int) and not isinstance(given["seed"], bool):
        given["seed"] %= 2**63
    return dict(sorted((checked | _typed(given)).items()))


def _typed(given: dict[str, Any]) -> dict[str, Any]:
    if not given:
        return {}
    try:
        params = GenerateParams.model_validate_json(json_text.dump(given))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = ".".join(str(part) for part in first["loc"][:1])
        raise BadRow("bad_override", f"{path}: {first['msg']} (got {str(first['input'])[:60]!r})") from None
    return params.model_dump(mode="json", include=set(given))


def _from_text(name: str, value: Any) -> Any:
    if not isinstance(value, str) or name == "system" or not value.strip():
        return value
    if name == "stop" and not value.lstrip().startswith("["):
        return value
    try:
        return json_text.parse(value.encode())
    except BadRow:
        return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise BadRow("bad_override", f"system: must be text, got {type(value).__name__}")
    return value


def _schema(value: Any) -> Any:
    if isinstance(value, str):
        value = json_text.parse(value.encode())
    if not isinstance(value, dict):
        raise BadRow("bad_override", "json_schema: must be a JSON object")
    return orjson.loads(json_text.dump(value))
