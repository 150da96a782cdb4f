"""Ten tokens through the whole decoder before the night: what is not finite is found here and named, with layer and type."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pipeline.core.errors import ModelError
from pipeline.model.attention import FullAttention
from pipeline.model.decoder import Decoder

TOKENS = 10


def smoke_run(decoder: Decoder) -> list[int]:
    """Ten greedy tokens without a cache from a few fixed ids; the tokens are returned.

    The sequence has its full length from the start, as no token sees later ones: a library that prepares itself for every
    new shape does so once.

    Raises ModelError when a weight or an activation is not finite.
    """
    hooks = [layer.register_forward_hook(_watch(f"layer {index}", decoder)) for index, layer in enumerate(decoder.layers)]
    hooks.append(decoder.embedding.register_forward_hook(_watch("the embedding", decoder)))
    try:
        start = [token % decoder.usable_vocab for token in (1, 2, 3, 5, 8, 13, 21, 34)]
        ids = torch.tensor(start + [0] * TOKENS, device=decoder.device)
        positions = torch.arange(len(ids), device=decoder.device)
        for place in range(len(start), len(ids)):
            row = decoder(ids, positions, FullAttention(), positions[place - 1 : place])[0, : decoder.usable_vocab]
            if not row.isfinite().all():
                raise _not_finite(decoder, "the head", decoder.head)
            ids[place] = row.argmax()
        return ids[-TOKENS:].tolist()
    finally:
        for hook in hooks:
            hook.remove()


def _watch(place: str, decoder: Decoder):  # type: ignore[no-untyped-def]
    def check(module: nn.Module, inputs: object, output: Tensor) -> None:
        if not output.isfinite().all():
            raise _not_finite(decoder, place, module)

    return check


def _not_finite(decoder: Decoder, place: str, module: nn.Module) -> ModelError:
    dtype = str(decoder.dtype).removeprefix("torch.")
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if tensor.is_floating_point() and not tensor.isfinite().all():
            count = int((~tensor.isfinite()).sum())
            small = " or, if its weights do not fit the type, set model.dtype to bfloat16 or float32" if dtype == "float16" else ""
            return ModelError(f"{place}: {name} has {count} values that are not finite in {dtype}; the checkpoint is damaged: fetch it "
                              f"again, with the sha256 its publisher names{small}")  # fmt: skip
    return ModelError(f"{place}: the result is not finite in {dtype} though its weights are: the model overflows this type; "
                      "set model.dtype to bfloat16 or float32")  # fmt: skip
