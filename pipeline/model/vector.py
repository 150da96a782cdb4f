"""Sixteen float32 lanes for Numba kernels: loads, stores and arithmetic in the order written, the same on every machine.

Numba ships its own compiler, so no user needs one. What its optimiser makes of a plain loop depends on the processor;
these functions are single instructions of LLVM's language instead: each multiply-add rounds once, in program order.
Memory is named by byte addresses (int64); nothing is checked.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import numba
import numba.extending
from llvmlite import ir
from numba.core import types
from numba.core.errors import TypingError
from numba.extending import models, register_model

intrinsic: Any = numba.extending.intrinsic  # the stubs know the generator's arguments, not those of the call
njit: Any = numba.njit

SOURCE = sha256(Path(__file__).read_bytes()).hexdigest()  # names this file's instructions in compilation caches
LANES = 16
FLOAT32, BFLOAT16, FLOAT16 = 0, 1, 2  # kinds of stored numbers
SIZES = {FLOAT32: 4, BFLOAT16: 2, FLOAT16: 2}  # bytes

F32, I32, I16, I64 = ir.FloatType(), ir.IntType(32), ir.IntType(16), ir.IntType(64)
VF, VI, VH = (ir.VectorType(kind, LANES) for kind in (F32, I32, I16))


class _Vector(types.Type):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__("float32x16")


VECTOR = _Vector()


@register_model(_Vector)
class _VectorModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, VF)


def literal_int(kind: Any) -> int:
    """The value of an argument that must be known when a kernel is compiled (`numba.literally` in the caller)."""
    if not isinstance(kind, types.IntegerLiteral):
        raise TypingError("must be a literal int")
    value: int = kind.literal_value
    return value


def splat_ir(b: Any, value: Any, kind: Any = VF) -> Any:
    """IR: one scalar in all lanes."""
    one = b.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(I32, 0))
    return b.shuffle_vector(one, ir.Constant(kind, ir.Undefined), ir.Constant(VI, [0] * LANES))


def load_ir(b: Any, address: Any, kind: int) -> Any:
    """IR: sixteen stored numbers as float32."""
    stored = {FLOAT32: VF, BFLOAT16: VH, FLOAT16: ir.VectorType(ir.HalfType(), LANES)}[kind]
    raw = b.load(b.inttoptr(address, stored.as_pointer()), align=SIZES[kind])
    if kind == FLOAT32:
        return raw
    if kind == FLOAT16:
        return b.fpext(raw, VF)
    return b.bitcast(b.shl(b.zext(raw, VI), ir.Constant(VI, [16] * LANES)), VF)


def store_ir(b: Any, address: Any, value: Any, kind: int) -> None:
    """IR: sixteen float32 rounded to the stored kind, to nearest even."""
    if kind == FLOAT16:
        value = b.fptrunc(value, ir.VectorType(ir.HalfType(), LANES))
    elif kind == BFLOAT16:
        bits = b.bitcast(value, VI)
        odd = b.and_(b.lshr(bits, ir.Constant(VI, [16] * LANES)), ir.Constant(VI, [1] * LANES))
        near = b.lshr(b.add(bits, b.add(odd, ir.Constant(VI, [0x7FFF] * LANES))), ir.Constant(VI, [16] * LANES))
        nan = b.fcmp_unordered("uno", value, value)
        value = b.trunc(b.select(nan, ir.Constant(VI, [0x7FC0] * LANES), near), VH)
    b.store(value, b.inttoptr(address, value.type.as_pointer()), align=SIZES[kind])


def fma_ir(b: Any, x: Any, y: Any, z: Any) -> Any:
    """IR: x * y + z, rounded once."""
    kind = x.type
    name = "llvm.fma.v16f32" if kind == VF else "llvm.fma.f32"
    function = b.module.globals.get(name) or ir.Function(b.module, ir.FunctionType(kind, [kind] * 3), name)
    return b.call(function, [x, y, z])


def _binary(operation: str) -> Any:
    @intrinsic
    def function(context: Any, x: Any, y: Any) -> Any:
        return VECTOR(VECTOR, VECTOR), lambda cg, b, sig, args: getattr(b, operation)(*args)

    return function


add, sub, mul, div = _binary("fadd"), _binary("fsub"), _binary("fmul"), _binary("fdiv")


@intrinsic
def fma(context: Any, x: Any, y: Any, z: Any) -> Any:
    """x * y + z."""
    return VECTOR(VECTOR, VECTOR, VECTOR), lambda cg, b, sig, args: fma_ir(b, *args)


@intrinsic
def larger(context: Any, x: Any, y: Any) -> Any:
    """Lane by lane the larger one; y where either is not a number."""
    return VECTOR(VECTOR, VECTOR), lambda cg, b, sig, args: b.select(b.fcmp_ordered(">", *args), *args)


@intrinsic
def smaller(context: Any, x: Any, y: Any) -> Any:
    """Lane by lane the smaller one; x where either is not a number."""
    return VECTOR(VECTOR, VECTOR), lambda cg, b, sig, args: b.select(b.fcmp_ordered(">", *args), args[1], args[0])


@intrinsic
def splat(context: Any, value: Any) -> Any:
    """One float32 in all lanes."""
    return VECTOR(types.float32), lambda cg, b, sig, args: splat_ir(b, args[0])


@intrinsic(prefer_literal=True)
def load(context: Any, address: Any, kind: Any) -> Any:
    """Sixteen numbers of a literal kind."""
    literal = literal_int(kind)
    return VECTOR(types.int64, kind), lambda cg, b, sig, args: load_ir(b, args[0], literal)


@intrinsic(prefer_literal=True)
def store(context: Any, address: Any, value: Any, kind: Any) -> Any:
    """Store sixteen numbers as a literal kind."""
    literal = literal_int(kind)

    def generate(cg: Any, b: Any, sig: Any, args: Any) -> Any:
        store_ir(b, args[0], args[1], literal)
        return cg.get_dummy_value()

    return types.none(types.int64, VECTOR, kind), generate


@intrinsic
def first_lanes(context: Any, count: Any, x: Any, y: Any) -> Any:
    """x in the first `count` lanes, y in the others."""

    def generate(cg: Any, b: Any, sig: Any, args: Any) -> Any:
        lanes = ir.Constant(VI, list(range(LANES)))
        inside = b.icmp_signed("<", lanes, splat_ir(b, b.trunc(args[0], I32), VI))
        return b.select(inside, args[1], args[2])

    return VECTOR(types.int64, VECTOR, VECTOR), generate


def _reduction(combine: Any) -> Any:
    """Halve sixteen lanes four times: a fixed tree."""

    @intrinsic
    def function(context: Any, x: Any) -> Any:
        def generate(cg: Any, b: Any, sig: Any, args: Any) -> Any:
            value = args[0]
            for width in (8, 4, 2, 1):
                order = [lane + width if lane < width else lane for lane in range(LANES)]
                value = combine(b, value, b.shuffle_vector(value, value, ir.Constant(VI, order)))
            return b.extract_element(value, ir.Constant(I32, 0))

        return types.float32(VECTOR), generate

    return function


sum_lanes = _reduction(lambda b, x, y: b.fadd(x, y))
max_lanes = _reduction(lambda b, x, y: b.select(b.fcmp_ordered(">", x, y), x, y))


@intrinsic
def _times_two_to(context: Any, value: Any, shifted: Any, x: Any) -> Any:
    """value * 2 ** n, where n sits in the low bits of `shifted`; 0 for x below -87, not a number where x is none."""

    def generate(cg: Any, b: Any, sig: Any, args: Any) -> Any:
        power = b.shl(b.bitcast(args[1], VI), ir.Constant(VI, [23] * LANES))
        scaled = b.bitcast(b.add(b.bitcast(args[0], VI), power), VF)
        small = b.fcmp_ordered("<", args[2], ir.Constant(VF, [-87.0] * LANES))
        scaled = b.select(small, ir.Constant(VF, [0.0] * LANES), scaled)
        return b.select(b.fcmp_unordered("uno", args[2], args[2]), args[2], scaled)

    return VECTOR(VECTOR, VECTOR, VECTOR), generate


@njit(inline="always")
def exp(x: Any) -> Any:
    """e ** x for x up to 88, error below 2 units in the last place; after Cephes' expf: x = n ln 2 + r, a polynomial in r."""
    to_integer = splat(types.float32(12582912.0))  # 1.5 * 2 ** 23: adding it leaves n in the low bits
    shifted = fma(x, splat(types.float32(1.44269504088896341)), to_integer)
    n = sub(shifted, to_integer)
    r = fma(n, splat(types.float32(-0.693359375)), x)
    r = fma(n, splat(types.float32(2.12194440e-4)), r)
    p = splat(types.float32(1.9875691500e-4))
    p = fma(p, r, splat(types.float32(1.3981999507e-3)))
    p = fma(p, r, splat(types.float32(8.3334519073e-3)))
    p = fma(p, r, splat(types.float32(4.1665795894e-2)))
    p = fma(p, r, splat(types.float32(1.6666665459e-1)))
    p = fma(p, r, splat(types.float32(5.0000001201e-1)))
    p = fma(p, mul(r, r), add(r, splat(types.float32(1.0))))
    return _times_two_to(p, shifted, x)


def _scalar_load(bits: Any, out: Any) -> Any:
    @intrinsic
    def function(context: Any, address: Any) -> Any:
        def generate(cg: Any, b: Any, sig: Any, args: Any) -> Any:
            value = b.load(b.inttoptr(args[0], bits.as_pointer()))
            return b.sext(value, I64) if bits == I32 else value

        return out(types.int64), generate

    return function


load_f32 = _scalar_load(F32, types.float32)
load_i32 = _scalar_load(I32, types.int64)
load_i64 = _scalar_load(I64, types.int64)


@intrinsic(prefer_literal=True)
def load_number(context: Any, address: Any, kind: Any) -> Any:
    """One stored number of a literal kind as float32."""
    literal = literal_int(kind)

    def generate(cg: Any, b: Any, sig: Any, args: Any) -> Any:
        stored = {FLOAT32: F32, BFLOAT16: I16, FLOAT16: ir.HalfType()}[literal]
        raw = b.load(b.inttoptr(args[0], stored.as_pointer()))
        if literal == FLOAT32:
            return raw
        return b.fpext(raw, F32) if literal == FLOAT16 else b.bitcast(b.shl(b.zext(raw, I32), ir.Constant(I32, 16)), F32)

    return types.float32(types.int64, kind), generate


def _scalar_store(stored: Any, kind: Any) -> Any:
    @intrinsic
    def function(context: Any, address: Any, value: Any) -> Any:
        def generate(cg: Any, b: Any, sig: Any, args: Any) -> Any:
            b.store(args[1], b.inttoptr(args[0], stored.as_pointer()))
            return cg.get_dummy_value()

        return types.none(types.int64, kind), generate

    return function


store_f32 = _scalar_store(F32, types.float32)
store_i64 = _scalar_store(I64, types.int64)


@intrinsic
def take_ticket(context: Any, address: Any) -> Any:
    """Atomically add 1 to the int64 at `address`; returns what was there."""

    def generate(cg: Any, b: Any, sig: Any, args: Any) -> Any:
        return b.atomic_rmw("add", b.inttoptr(args[0], I64.as_pointer()), ir.Constant(I64, 1), "monotonic")

    return types.int64(types.int64), generate


@intrinsic(prefer_literal=True)
def copy_number(context: Any, source: Any, target: Any, kind: Any) -> Any:
    """Copy one stored number of a literal kind."""
    bits = I32 if literal_int(kind) == FLOAT32 else I16

    def generate(cg: Any, b: Any, sig: Any, args: Any) -> Any:
        b.store(b.load(b.inttoptr(args[0], bits.as_pointer())), b.inttoptr(args[1], bits.as_pointer()))
        return cg.get_dummy_value()

    return types.none(types.int64, types.int64, kind), generate


@njit(inline="always")
def tanh(x: Any) -> Any:
    """Hyperbolic tangent as 1 - 2 / (exp(2 x) + 1), error below 1e-7."""
    one, two = splat(types.float32(1.0)), splat(types.float32(2.0))
    inside = smaller(x, splat(types.float32(20.0)))
    return sub(one, div(two, add(exp(mul(two, inside)), one)))
