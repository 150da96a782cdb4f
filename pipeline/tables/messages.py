"""Conversations: a list of turns, each with a role and text."""

from __future__ import annotations

from typing import Any

from pipeline.tables import json_text
from pipeline.tables.cells import kind_of
from pipeline.tables.records import BadRow


def messages_json(value: Any) -> str:
    """A conversation as a JSON array of {role, content}; given as a list or as its JSON text. Raises BadRow."""
    if isinstance(value, str):
        value = json_text.parse(value.encode())
    if not isinstance(value, list) or not value:
        raise BadRow("bad_messages", f"messages must be a list of turns, found {kind_of(value)}")
    turns = [_turn(turn, place) for place, turn in enumerate(value)]
    if not any(turn["role"] != "system" and turn["content"].strip() for turn in turns):
        raise BadRow("empty_text", "no turn beside the system's holds any text")
    return json_text.dump(turns)


def _turn(turn: Any, place: int) -> dict[str, str]:
    if not isinstance(turn, dict) or not isinstance(turn.get("role"), str) or not turn["role"]:
        raise BadRow("bad_messages", f"messages[{place}] must be an object with role and content")
    extra = sorted(key for key, item in turn.items() if key not in ("role", "content", "name") and item not in (None, [], ""))
    if extra:
        raise BadRow("unsupported_content", f"messages[{place}].{extra[0]} is not supported")
    content = turn.get("content")
    if isinstance(content, list):
        content = "".join(_part(part, place) for part in content)
    if not isinstance(content, str):
        raise BadRow("bad_messages", f"messages[{place}].content must be text, found {kind_of(content)}")
    return {"role": turn["role"], "content": content}


def _part(part: Any, place: int) -> str:
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        text: str = part["text"]
        return text
    kind = part.get("type") if isinstance(part, dict) else kind_of(part)
    raise BadRow("unsupported_content", f"messages[{place}].content holds a part of type {kind!r}; only text is supported")
