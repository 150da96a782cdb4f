"""The oracle: one request alone, the whole sequence computed anew for each token, no cache, no batch. Slow and plain."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from pipeline.engine.answer import Answer, refusal
from pipeline.engine.request import Completion, Request
from pipeline.engine.sampler import choose
from pipeline.model.attention import FullAttention

if TYPE_CHECKING:
    from pipeline.engine.engine import Model


@torch.inference_mode()
def generate(decoder: Model, request: Request, stop_ids: Iterable[int] = ()) -> Completion:
    """The answer that the engine must give for this request, whatever its company."""
    error = refusal(request, decoder.config.vocab_size, decoder.config.max_model_len)
    if error:
        return Completion(request.id, request.sample, (), (), "error", error=error)
    answer = Answer(request, frozenset(stop_ids), decoder.config.max_model_len)
    while answer.finish_reason is None:
        tokens = torch.tensor([*request.token_ids, *answer.token_ids], device=decoder.device)
        places = torch.arange(len(tokens), device=decoder.device)
        logits = decoder(tokens, places, FullAttention(), places[-1:])
        answer.push(choose(logits, [answer.draw()], decoder.usable_vocab)[0])
    return answer.completion()
