"""One answer as it grows: what has been drawn, and whether it is finished. Shared by the engine and the oracle."""

from __future__ import annotations

from pipeline.engine.request import Completion, Request
from pipeline.engine.sampler import Choice, Draw, prompt_digest


def refusal(request: Request, vocab_size: int, max_model_len: int) -> str | None:
    """Why a request cannot be answered at all ("code: detail"), None when it can."""
    tokens = len(request.token_ids)
    if tokens == 0:
        return "empty_prompt: the prompt has no tokens"
    if tokens >= max_model_len:
        return f"prompt_too_long: the prompt has {tokens} tokens, model.max_model_len is {max_model_len} with at least one for the answer"
    worst = next((t for t in request.token_ids if not 0 <= t < vocab_size), None)
    if worst is not None:
        return f"token_out_of_range: token id {worst} in a prompt for a vocabulary of {vocab_size}"
    return None


class Answer:
    """Takes drawn tokens until a stop id, a stop string or a limit ends it.

    finish_reason is None while it goes on. A stop id counts as part of token_ids; it is checked before stop strings.
    """

    def __init__(self, request: Request, stop_ids: frozenset[int], max_model_len: int) -> None:
        self.request = request
        self.token_ids: list[int] = []
        self.finish_reason: str | None = None
        self.finish_detail: str | None = None
        self.error: str | None = None
        self._stop_ids = frozenset() if request.sampling.ignore_eos else stop_ids
        self._room = max_model_len - len(request.token_ids)
        self._logprobs: list[float] = []
        self._top: list[tuple[tuple[int, float], ...]] = []
        self._stopper = request.stopper() if request.stopper else None
        self._constraint = request.constraint() if request.constraint else None
        self._digest = prompt_digest(request.token_ids)
        if request.begun is not None:
            self._take_up(request.begun)

    def draw(self) -> Draw:
        """What the sampler needs for the next token."""
        allowed = self._constraint.allowed() if self._constraint else None
        request = self.request
        return Draw(
            request.sampling, self._digest, request.sample, len(self.token_ids), request.token_ids, self.token_ids, allowed)  # fmt: skip

    def push(self, choice: Choice) -> None:
        """Take the next token and decide whether the answer goes on."""
        token = choice.token_id
        if token is None:
            self.fail(f"non_finite_logits: at answer token {len(self.token_ids)}; check model.dtype and the weights")
            return
        self.token_ids.append(token)
        self._logprobs.append(choice.logprob)
        self._top.append(choice.top_logprobs)
        stop = self._stopper.push(token) if self._stopper and token not in self._stop_ids else None
        if token in self._stop_ids:
            self.finish_reason, self.finish_detail = "stop", f"token {token}"
        elif stop is not None:
            self.finish_reason, self.finish_detail = "stop", stop
        elif len(self.token_ids) >= self.request.sampling.max_new_tokens:
            self.finish_reason = "length"
        elif len(self.token_ids) >= self._room:
            self.finish_reason, self.finish_detail = "length", "max_model_len"
        elif self._constraint:
            self._constraint.accept(token)

    def _take_up(self, begun: Completion) -> None:
        """Go on from what an earlier process drew; stopper and constraint see every token again."""
        top = begun.top_logprobs or ((),) * len(begun.token_ids)
        for token, logprob, others in zip(begun.token_ids, begun.token_logprobs, top):
            self.push(Choice(token, logprob, others))

    def fail(self, error: str) -> None:
        """End with an error instead of an answer."""
        self.finish_reason, self.error = "error", error
        self.token_ids, self._logprobs, self._top = [], [], []

    def completion(self, first_token_s: float | None = None, total_s: float | None = None) -> Completion:
        """The answer so far."""
        top = tuple(self._top) if self.request.sampling.logprobs and self.error is None else None
        return Completion(
            self.request.id, self.request.sample, tuple(self.token_ids), tuple(self._logprobs),
            self.finish_reason or "unfinished",
            self.finish_detail, top, self.error, first_token_s, total_s)  # fmt: skip
