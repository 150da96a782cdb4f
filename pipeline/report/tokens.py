"""The text of tokens, for shading answers. None where the checkpoint's tokenizer is not at hand (answers made elsewhere)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pipeline.core.paths import Paths


@dataclass(frozen=True)
class TokenTexts:
    decode: Callable[[list[int]], str]


def load_token_texts(paths: Paths) -> TokenTexts | None:
    """The tokenizer that stage model named in models/model.json."""
    return None
