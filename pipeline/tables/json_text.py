"""Strict JSON for rows: duplicate keys, NaN, lone surrogates and trailing text are refused; digits are kept as written."""

from __future__ import annotations

import json
from typing import Any

import jiter
import orjson

from pipeline.tables.records import BadRow

Number = jiter.LosslessFloat  # a number with a fraction or exponent, as the text it was written in


def parse(data: bytes) -> Any:
    """One JSON value of UTF-8 bytes. Floats stay text-exact (Number), integers have any size. Raises BadRow."""
    try:
        return jiter.from_json(data, allow_inf_nan=False, catch_duplicate_keys=True, float_mode="lossless-float", cache_mode="keys")
    except ValueError as error:
        return _second_look(data, str(error))


def dump(value: Any) -> str:
    """Compact JSON with sorted keys; numbers as they were written. Raises BadRow for one beyond double precision's range."""
    try:
        return orjson.dumps(value, default=_default, option=orjson.OPT_SORT_KEYS).decode()
    except orjson.JSONEncodeError as error:
        if isinstance(error.__cause__, BadRow):
            raise error.__cause__ from None
        return _dump_big(value)


def digits(value: Any) -> str:
    """A number as its source text."""
    return str(value)


def _default(value: Any) -> Any:
    if isinstance(value, Number):
        return orjson.Fragment(_finite(value))
    if isinstance(value, bytes):
        return _text_or_base64(value)
    return str(value)  # decimals, durations


def _finite(value: Any) -> bytes:
    if float(value) in (float("inf"), float("-inf")):
        raise BadRow("number_out_of_range", f"number {str(value)[:40]} is beyond the range of a double")
    return bytes(value)


def _text_or_base64(value: bytes) -> str:
    import base64

    try:
        return value.decode()
    except UnicodeDecodeError:
        return "base64:" + base64.b64encode(value).decode()


def _dump_big(value: Any) -> str:
    """The slow way, for integers beyond 64 bits."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{dump(str(key))}:{_dump_big(item)}" for key, item in sorted(value.items())) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(_dump_big(item) for item in value) + "]"
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return dump(value)


def _second_look(data: bytes, message: str) -> Any:
    """Name the fault; two kinds of text that the fast parser refuses are no fault: a mark before it, a pair said twice."""
    if data.startswith(b"\xef\xbb\xbf"):
        return parse(data[3:])
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise BadRow("invalid_utf8", invalid_utf8(error)) from None
    if "recursion limit" in message:
        raise BadRow("too_deep", "JSON is nested more than 200 levels deep")
    if "duplicate key" in message:
        return _merge_equal_pairs(text, message)
    if "hex escape" in message and _is_lenient_json(text):
        raise BadRow("lone_surrogate", f"half of a surrogate pair is no character ({message})")
    if "number out of range" in message:
        raise BadRow("number_out_of_range", f"a number has too many digits ({message})")
    raise BadRow("invalid_json", message)


def invalid_utf8(error: UnicodeDecodeError) -> str:
    """A sentence with the byte and its place in the row."""
    byte = error.object[error.start]
    return (
        f"byte 0x{byte:02x} at offset {error.start} of the row is no valid UTF-8; "
        "if the file has another encoding, name it in data.encoding (gb18030, big5, shift_jis, cp1252, ...)"
    )


def _is_lenient_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _merge_equal_pairs(text: str, message: str) -> Any:
    def merge(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        for key, value in pairs:
            if key in merged and repr(merged[key]) != repr(value):
                raise BadRow("duplicate_key", f"key {key!r} stands twice in one object with different values")
            merged[key] = value
        return merged

    try:
        value = json.loads(text, object_pairs_hook=merge)
        return jiter.from_json(json.dumps(value, ensure_ascii=False, allow_nan=False).encode())
    except (ValueError, RecursionError):
        raise BadRow("invalid_json", message) from None
