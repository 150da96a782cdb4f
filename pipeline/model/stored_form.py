"""How a matrix in 8 or 4 bits lies in files and memory: names, shapes and types of its parts. No tensors.

int8: one symmetric scale per row (output channel). int4: groups of 32 columns, each with a scale and a minimum in float16, two
values to a byte, the last group padded. Embedding and head are int8 in both.
"""

from __future__ import annotations

GROUP = 32
BITS = {"none": 0, "int8": 8, "int4": 4}


def bits_of(target: str, bits: int) -> int:
    """Bits of one matrix of the decoder: embedding and head are never below 8."""
    return 8 if bits and target in ("embedding.weight", "head.weight") else bits


def stored_form(rows: int, columns: int, bits: int) -> dict[str, tuple[tuple[int, ...], str]]:
    """Suffix of the stored name: shape and safetensors type of each part of a quantised matrix."""
    if bits == 8:
        return {"": ((rows, columns), "I8"), "_scale": ((rows,), "F32")}
    groups = -(-columns // GROUP)
    return {"": ((rows, groups * GROUP // 2), "U8"), "_scale": ((rows, groups), "F16"), "_minimum": ((rows, groups), "F16")}
