"""What goes into the engine and what comes out: token ids and numbers only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol


class Stopper(Protocol):
    """Watches one answer for stop strings; made by the text floor, so that the engine never sees text."""

    def push(self, token_id: int) -> str | None:
        """Take the next generated token; return the stop string that is now complete, else None."""


class Constraint(Protocol):
    """Follows one answer through a grammar; made by the text floor."""

    def allowed(self) -> Any:
        """numpy bool [V]: token ids that may come next."""

    def accept(self, token_id: int) -> None:
        """Advance by the token that was chosen."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How one answer is drawn. Values are checked when params are read; see GenerateParams for their meaning."""

    max_new_tokens: int = 128
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    logprobs: int = 0
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """One answer wanted. `id` is the caller's own and unique together with `sample`; it never changes the answer."""

    id: int
    token_ids: tuple[int, ...]
    sampling: Sampling = Sampling()
    sample: int = 0
    stopper: Callable[[], Stopper] | None = None
    constraint: Callable[[], Constraint] | None = None
    begun: Completion | None = None  # an unfinished answer to this very request, to go on from


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer. token_ids hold the stop token where one ended it; token_logprobs are natural logs.

    finish_reason: stop, length or error; unfinished from Engine.under_way alone. finish_detail: the stop string, or "token N".
    error: "code: detail".
    Times are seconds since the engine took the request: first token, last token; they never reach a table of a stage.
    """

    id: int
    sample: int
    token_ids: tuple[int, ...]
    token_logprobs: tuple[float, ...]
    finish_reason: str
    finish_detail: str | None = None
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] | None = None
    error: str | None = None
    first_token_s: float | None = None
    total_s: float | None = None
    stats: dict[str, float] = field(default_factory=dict)
