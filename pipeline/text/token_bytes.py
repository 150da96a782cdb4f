"""What bytes each token adds to a text, so that characters split over tokens are seen as what they are."""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer as RustTokenizer


def token_bytes(rust: RustTokenizer, data: dict[str, Any], size: int) -> list[bytes]:
    """UTF-8 bytes by token id, as the decoder of tokenizer.json makes them; special tokens and unused ids give b"".

    A blank at the very start of a text that the decoder strips is not stripped here (see strips_first_blank).
    """
    decoders = flat_decoders(data)
    kinds = {item["type"] for item in decoders}
    special = {item["id"] for item in data.get("added_tokens", []) if item["special"]}
    if "ByteLevel" in kinds:
        one = _byte_level
    elif kinds <= {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"} and kinds:
        one = _with_fallback(decoders)
    else:
        one = _by_difference(rust)
    tokens = [rust.id_to_token(i) for i in range(size)]
    return [b"" if token is None or i in special else one(token) for i, token in enumerate(tokens)]


def flat_decoders(data: dict[str, Any]) -> list[dict[str, Any]]:
    """The decoder of tokenizer.json as a flat list."""
    decoder = data.get("decoder")
    if not decoder:
        return []
    return list(decoder["decoders"]) if decoder["type"] == "Sequence" else [decoder]


def strips_first_blank(data: dict[str, Any]) -> bool:
    """True where the decoder takes one blank off the start of a text (SentencePiece's dummy prefix)."""
    return any(
        (d["type"] == "Strip" and d["content"] == " " and d["start"])
        or (d["type"] == "Metaspace" and d.get("prepend_scheme", "always") != "never")
        for d in flat_decoders(data)
    )


def incomplete_tail(data: bytes) -> int:
    """How many bytes at the end are the beginning of a UTF-8 character that is not finished: 0 to 3."""
    for back in range(1, min(4, len(data) + 1)):
        byte = data[-back]
        if byte & 0xC0 != 0x80:
            needed = 2 if byte & 0xE0 == 0xC0 else 3 if byte & 0xF0 == 0xE0 else 4 if byte & 0xF8 == 0xF0 else 1
            return back if back < needed else 0
    return 0


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + n): b for n, b in enumerate(others)}


ALPHABET = _byte_alphabet()


def _byte_level(token: str) -> bytes:
    try:
        return bytes(ALPHABET[c] for c in token)
    except KeyError:
        return token.encode()  # an added token is spelled as it is


def _with_fallback(decoders: list[dict[str, Any]]) -> Any:
    replaced = [(d["pattern"]["String"], d["content"]) for d in decoders if d["type"] == "Replace" and "String" in d["pattern"]]
    replaced += [(d.get("replacement", "▁"), " ") for d in decoders if d["type"] == "Metaspace"]
    fallback = any(d["type"] == "ByteFallback" for d in decoders)

    def one(token: str) -> bytes:
        if fallback and len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            return bytes.fromhex(token[3:5])
        for old, new in replaced:
            token = token.replace(old, new)
        return token.encode()

    return one


def _by_difference(rust: RustTokenizer) -> Any:
    """Any other decoder: what a token adds behind another one."""
    anchor = next(i for i in range(rust.get_vocab_size()) if rust.decode([i]).strip())
    before = rust.decode([anchor])

    def one(token: str) -> bytes:
        token_id = rust.token_to_id(token)
        assert token_id is not None
        return str(rust.decode([anchor, token_id]))[len(before) :].encode()

    return one
