"""The text of tokens, for shading answers. None where the checkpoint is not on this machine (answers made elsewhere)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.core.errors import PipelineError
from pipeline.core.manifest import read_json_or_empty
from pipeline.core.paths import Paths
from pipeline.model.source import find_checkpoint
from pipeline.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class TokenTexts:
    """bytes_of: what each token id adds to a text, by id."""

    bytes_of: list[bytes]

    def pieces(self, ids: Sequence[int]) -> list[bytes]:
        return [self.bytes_of[i] if i < len(self.bytes_of) else b"" for i in ids]


def load_token_texts(paths: Paths) -> TokenTexts | None:
    """The tokenizer of the checkpoint that models/model.json names; nothing is imported or fetched for it."""
    source = read_json_or_empty(paths.model_json).get("source")
    try:
        folder = find_checkpoint(source, paths) if source else None
        return None if folder is None else TokenTexts(Tokenizer.load(folder).bytes_of)
    except PipelineError:
        return None
