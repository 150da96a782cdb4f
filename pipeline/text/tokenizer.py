"""A checkpoint's tokenizer: text to ids and back, batch-wise in Rust. Knows nothing of rows or templates.

Two ways in: plain text, where control-token strings are ordinary characters, and scaffold text, whose own control tokens
are parsed while those that came with a row's content (marked by `control_tokens.escape`) stay text.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as RustTokenizer

from pipeline.core.errors import ModelError
from pipeline.core.hashing import sha256_json
from pipeline.text.control_tokens import ControlTokens, unused_character
from pipeline.text.token_bytes import strips_first_blank, token_bytes

MARKUP = re.compile(r"<[^<>\s]+>|\[[^\[\]\s]+\]")  # added tokens of this form steer a model even where they are not `special`
NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
FIRST_ALIAS = 0x10F000  # private use


class Tokenizer:
    """tokenizer.json without padding, truncation and decode clean-up, plus what tokenizer_config.json says of BOS."""

    def __init__(self, text: str, config: dict[str, Any] | None = None) -> None:
        """text: tokenizer.json as it is; config: tokenizer_config.json. Raises ValueError, KeyError or TypeError when damaged."""
        config = config or {}
        data: dict[str, Any] = json.loads(text)
        self._rust = _without_extras(text, data)
        self._data = {key: data.get(key) for key in ("added_tokens", "decoder")}
        self.named_tokens = {name: _content(config[name]) for name in NAMED_TOKENS if config.get(name)}
        added = [item for item in data.get("added_tokens", []) if len(item["content"]) > 1]
        self.control_tokens: dict[str, int] = {t["content"]: t["id"] for t in added if t["special"] or MARKUP.fullmatch(t["content"])}
        special = frozenset(t["content"] for t in added if t["special"])
        self.escaper = ControlTokens(frozenset(self.control_tokens))
        self.special_escaper = ControlTokens(special)
        self.bos_ids = self._find_bos(config)
        self.strips_first_blank = strips_first_blank(self._data)
        self.digest = sha256_json({"tokenizer": hashlib.sha256(text.encode()).hexdigest(), "bos": self.bos_ids, "named": self.named_tokens})

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """Read tokenizer.json and tokenizer_config.json of a checkpoint. Raises ModelError naming the file."""
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise ModelError(
                f"{folder}: no tokenizer.json; convert the checkpoint's tokenizer (tokenizer.model, vocab.txt) with "
                "`pipeline checkpoint import`, or add the tokenizer.json of its release"
            )
        config = read_tokenizer_config(folder)
        try:
            return cls(file.read_text(encoding="utf-8"), config)
        except (ValueError, KeyError, TypeError) as error:
            raise ModelError(f"{file}: damaged: {error}; fetch it again") from None
        except Exception as error:  # the Rust library raises bare Exception
            raise ModelError(f"{file}: the tokenizers library cannot read it: {error}") from None

    @property
    def size(self) -> int:
        """Number of ids: the highest id plus one."""
        return max(self._rust.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def to_json(self) -> str:
        """The tokenizer as one JSON text, for libraries that read it themselves."""
        text: str = self._rust.to_str()
        return text

    def token_id(self, token: str) -> int | None:
        """The id of a token's exact string, None where there is none."""
        found: int | None = self._rust.token_to_id(token)
        return found

    def token(self, token_id: int) -> str | None:
        """The string of an id as the vocabulary spells it, None where there is none."""
        found: str | None = self._rust.id_to_token(token_id)
        return found

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of plain texts: control-token strings are characters like any other, nothing is added."""
        aliased, back = self._aliased(unused_character("".join(texts), FIRST_ALIAS))
        return [_restore(e.ids, back) for e in aliased.encode_batch_fast(texts, add_special_tokens=False)]

    def encode_scaffold(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of texts all of whose control-token strings are meant: exactly the library's own tokenisation."""
        return [e.ids for e in self._rust.encode_batch_fast(texts, add_special_tokens=False)]

    def encode_marked(self, text: str, marker: str) -> list[int]:
        """Ids of a scaffold with escaped content: unmarked control tokens are parsed, marked ones are text."""
        alias = unused_character(text + marker, FIRST_ALIAS)
        aliased, back = self._aliased(alias)
        text = self.escaper.pattern.sub(lambda found: alias + found.group() + alias, text).replace(marker, "")
        return _restore(aliased.encode(text, add_special_tokens=False).ids, back)

    def cut(self, text: str, tokens: int, *, left: bool) -> str:
        """The text without about `tokens` tokens at its left or right end, at least one; cut between characters."""
        offsets = self._aliased(unused_character(text, FIRST_ALIAS))[0].encode(text, add_special_tokens=False).offsets
        if tokens >= len(offsets):
            return ""
        if left:
            return text[max(offsets[tokens][0], 1) :]
        return text[: min(offsets[len(offsets) - tokens][0], len(text) - 1)]

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """The text of all ids at once; special tokens left out unless asked for."""
        text: str = self._rust.decode(list(ids), skip_special_tokens=skip_special)
        return text

    @cached_property
    def bytes_of(self) -> list[bytes]:
        """UTF-8 bytes that each id adds to a decoded text, by id; special tokens add none. See token_bytes."""
        return token_bytes(self._rust, self._data, self.size)

    def _find_bos(self, config: dict[str, Any]) -> list[int]:
        """Ids the tokenizer itself puts before a text: those of its post-processor, or bos_token under add_bos_token."""
        with_added = self._rust.encode("a", add_special_tokens=True).ids
        plain = self._rust.encode("a", add_special_tokens=False).ids
        prefix = with_added[: _find(with_added, plain)]
        bos = self.named_tokens.get("bos_token")
        bos_id = self._rust.token_to_id(bos) if bos else None
        if config.get("add_bos_token") is True and bos_id is not None:
            return [bos_id]
        return [] if config.get("add_bos_token") is False else prefix

    @lru_cache(maxsize=4)  # noqa: B019 the tokenizer lives as long as the process
    def _aliased(self, alias: str) -> tuple[RustTokenizer, dict[int, int]]:
        """The tokenizer with each control token renamed to alias + name + alias, and its new ids with the old ones.

        The library splits texts at added tokens, so that what lies between them is encoded just as with the real names;
        the real names have become text. `alias` must not occur in the text to be encoded.
        """
        data = json.loads(self.to_json())
        names = {content: alias + content + alias for content in self.control_tokens}
        data["added_tokens"] = [t | {"content": names.get(t["content"], t["content"])} for t in data["added_tokens"]]
        data["model"] = _renamed_pieces(data["model"], names)
        rust = RustTokenizer.from_str(json.dumps(data | {"post_processor": None}, ensure_ascii=False))
        pairs = ((rust.token_to_id(names[content]), token_id) for content, token_id in self.control_tokens.items())
        return rust, {new: old for new, old in pairs if new is not None and new != old}


def read_tokenizer_config(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json, with the named tokens of special_tokens_map.json where it lacks them."""
    return read_object(folder / "special_tokens_map.json") | read_object(folder / "tokenizer_config.json")


def read_object(file: Path) -> dict[str, Any]:
    """A JSON object, {} where there is no such file. Raises ModelError when it is damaged."""
    if not file.is_file():
        return {}
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{file}: damaged: {error}; fetch it again") from None
    return data if isinstance(data, dict) else {}


def _restore(ids: list[int], back: dict[int, int]) -> list[int]:
    return [back.get(i, i) for i in ids] if ids and max(ids) >= min(back, default=1 << 62) else ids


def _renamed_pieces(model: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """The model with control tokens renamed in its own vocabulary: a Unigram model may take them for likely pieces of text.

    Left alone: pieces that merges make, and the unknown piece where the model finds it by name.
    """
    vocab = model.get("vocab")
    if isinstance(vocab, list):
        return model | {"vocab": [[names.get(piece, piece), score] for piece, score in vocab]}
    made = {"".join(merge) if isinstance(merge, list) else merge.replace(" ", "", 1) for merge in model.get("merges") or ()}
    kept = {model.get("unk_token")} | made
    return model | {"vocab": {piece if piece in kept else names.get(piece, piece): number for piece, number in (vocab or {}).items()}}


def _content(token: Any) -> str:
    return str(token["content"]) if isinstance(token, dict) else str(token)


def _find(ids: list[int], part: list[int]) -> int:
    return next((i for i in range(len(ids) - len(part) + 1) if ids[i : i + len(part)] == part), 0)


def _without_extras(text: str, data: dict[str, Any]) -> RustTokenizer:
    """The tokenizer without padding, without truncation and without a decoder's clean-up of blanks before punctuation."""
    if "cleanup" in json.dumps(data.get("decoder")):
        text = json.dumps(data | {"decoder": _without_cleanup(data["decoder"])}, ensure_ascii=False)
    rust = RustTokenizer.from_str(text)
    rust.no_padding()
    rust.no_truncation()
    return rust


def _without_cleanup(decoder: Any) -> Any:
    """WordPiece and CTC decoders may "clean up" blanks before punctuation, which changes the text."""
    if not isinstance(decoder, dict):
        return decoder
    if decoder.get("type") == "Sequence":
        return decoder | {"decoders": [_without_cleanup(item) for item in decoder["decoders"]]}
    return decoder | {"cleanup": False} if "cleanup" in decoder else decoder
