"""Answers held to a JSON schema or a regular expression by llguidance. Token ids and numpy only; no tensor.

A blank may stand only where the schema's canonical spelling has one, or an answer could be blanks without end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import llguidance.numpy as masks
import numpy as np
from llguidance import LLMatcher, LLTokenizer

from pipeline.core.errors import ParamsError
from pipeline.core.hashing import canonical_json
from pipeline.text.tokenizer import Tokenizer


class GrammarConstraint:
    """Follows one answer through a grammar (engine.request.Constraint)."""

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        self._matcher, self._vocab_size = matcher, vocab_size
        self._bits = masks.allocate_token_bitmask(1, vocab_size)

    def allowed(self) -> np.ndarray:
        """bool [V]: token ids that may come next; a stop token is among them when the answer may end here."""
        masks.fill_next_token_bitmask(self._matcher, self._bits)
        return np.unpackbits(self._bits.view(np.uint8), bitorder="little", count=self._vocab_size).astype(bool)

    def accept(self, token_id: int) -> None:
        """Advance by the token that was chosen; it must be one of `allowed`."""
        self._matcher.consume_token(token_id)


def make_constraint(tokenizer: Tokenizer, grammar: Any, stop_ids: Sequence[int]) -> Callable[[], GrammarConstraint]:
    """A maker of fresh constraints, one per answer. grammar: a JSON schema, or {"regex": text}.

    Raises ParamsError when the grammar is malformed or uses what llguidance does not support, in its words.
    """
    library = LLTokenizer(tokenizer.to_json(), n_vocab=tokenizer.size, eos_token=list(stop_ids) or None)
    if isinstance(grammar, dict) and set(grammar) == {"regex"}:
        compiled = LLMatcher.grammar_from_regex(grammar["regex"])
    else:
        compiled = LLMatcher.grammar_from_json_schema(canonical_json(grammar), overrides={"whitespace_flexible": False})
    first = LLMatcher(library, compiled)
    if first.is_error():
        raise ParamsError(f"generate.json_schema: {first.get_error()}; change the schema, or leave it out")
    return lambda: GrammarConstraint(first.deep_copy(), tokenizer.size)
