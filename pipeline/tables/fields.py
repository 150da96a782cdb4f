"""Dotted paths into nested rows: `prompt`, `instances[0].input`, `answers[].text`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from typing import Any

from pipeline.core.errors import some_of

MISSING: Any = type("Missing", (), {"__repr__": lambda self: "MISSING", "__bool__": lambda self: False})()

_STEP = re.compile(r"([^.\[\]]+)|\[(\d*)\]|(\.)")
Step = str | int | None  # a key, an index, or None for every item of a list


def parse_path(path: str) -> tuple[Step, ...]:
    """Steps of a path. Raises ValueError with the place where it is not understood."""
    steps: list[Step] = []
    place = 0
    while place < len(path):
        match = _STEP.match(path, place)
        if match is None:
            raise ValueError(f"{path!r} is no field path: not understood at {path[place:]!r}")
        key, index, _dot = match.groups()
        if key is not None:
            steps.append(key)
        elif index is not None:
            steps.append(int(index) if index else None)
        place = match.end()
    if not steps:
        raise ValueError("a field path must not be empty")
    return tuple(steps)


def getter(path: str) -> Callable[[dict[str, Any]], Any]:
    """A function from a row to the value at `path`, MISSING where it is not there. A field of exactly that name wins."""
    if is_plain(path):
        return lambda row: row.get(path, MISSING)
    steps = parse_path(path)

    def get(row: dict[str, Any]) -> Any:
        return row[path] if path in row else _walk(row, steps)

    return get


def is_plain(path: str) -> bool:
    """True for the name of a top-level field, even one like `score [0-1]` that no path could mean."""
    try:
        return parse_path(path) == (path,)
    except ValueError:
        return True


def leads_somewhere(path: str, names: Iterable[str]) -> bool:
    """Could a path be found in rows with these fields? Only its first step is looked at."""
    return bool({path, path if is_plain(path) else parse_path(path)[0]} & set(names))


def near_names(path: str, names: Iterable[str], shown: int = 12) -> str:
    """Words on what might be meant by a field that is not there: the nearest names, and those there are."""
    known = sorted(names)
    near = difflib.get_close_matches(path.partition(".")[0], known, n=2, cutoff=0.5)
    return (f"did you mean {' or '.join(near)}? " if near else "") + f"fields seen: {some_of(known, shown) or 'none'}"


def _walk(value: Any, steps: tuple[Step, ...]) -> Any:
    for place, step in enumerate(steps):
        if step is None:
            if not isinstance(value, list):
                return MISSING
            found = [_walk(item, steps[place + 1 :]) for item in value]
            return [item for item in found if item is not MISSING]
        if isinstance(step, int):
            if not isinstance(value, list) or step >= len(value):
                return MISSING
            value = value[step]
        else:
            if not isinstance(value, dict) or step not in value:
                return MISSING
            value = value[step]
    return value
