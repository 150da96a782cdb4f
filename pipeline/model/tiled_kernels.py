"""Attention for CPU that reads pages in place: two small tiles in LLVM's language and the loops around them in Numba.

For one query the order of every sum is fixed: over d for a score, over keys for the output, in sixteen lanes by key for
the softmax. It does not depend on how many queries share a tile, on the page size, or on how a row was cut into steps.
`kv_cache.PagedAttention` is the readable form of the same computation.

Memory of one layer, T tiles of 16 slots per page, W = D rounded up to 16:
keys [P, K, T, D, 16] (a tile holds 16 keys, key lanes innermost), values [P, K, T * 16, W].
"""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import ir
from numba import cfunc, literally
from numba.core import cgutils, types

from pipeline.model import vector as vec
from pipeline.model.vector import FLOAT32, I64, LANES, SIZES, intrinsic, njit

MAX_TILE = 8  # queries that share one read of keys and values
FIELDS = (
    "TICKETS", "THREADS", "STORE_TICKETS", "ITEMS", "ITEM_COUNT", "SCRATCH", "SCRATCH_BYTES", "SCORES_STRIDE",
    "Q", "Q_STRIDE", "OUT", "KEYS", "VALUES", "NEW_KEYS", "NEW_KEYS_STRIDE", "NEW_VALUES", "NEW_VALUES_STRIDE", "SLOTS", "TOKEN_COUNT",
    "TABLES", "TABLE_STRIDE", "PAST", "STARTS", "PAGE_SIZE", "PAGE_TILES", "DIM", "WIDTH", "GROUP", "KV_HEADS", "WINDOW", "SOFTCAP",
    "SCALE",
)  # fmt: skip
(
    TICKETS, THREADS, STORE_TICKETS, ITEMS, ITEM_COUNT, SCRATCH, SCRATCH_BYTES, SCORES_STRIDE,
    Q, Q_STRIDE, OUT, KEYS, VALUES, NEW_KEYS, NEW_KEYS_STRIDE, NEW_VALUES, NEW_VALUES_STRIDE, SLOTS, TOKEN_COUNT,
    TABLES, TABLE_STRIDE, PAST, STARTS, PAGE_SIZE, PAGE_TILES, DIM, WIDTH, GROUP, KV_HEADS, WINDOW, SOFTCAP, SCALE,
) = (8 * index for index in range(32))  # fmt: skip
"""Byte offsets in the argument block: int64 each, SOFTCAP and SCALE float32. Addresses and strides in bytes but TABLE_STRIDE."""


@intrinsic(prefer_literal=True)
def _score_tiles(context: Any, queries: Any, tiles: Any, kind: Any, dim: Any, q: Any, keys: Any, out: Any, out_stride: Any) -> Any:
    """Scores of `queries` queries (float32 [queries, dim] at q) with the 16 keys of each of `tiles` tiles; float32.

    Few queries take two tiles at once: their sums wait for each other less.
    """
    rows, wide, stored = (vec.literal_int(x) for x in (queries, tiles, kind))

    def generate(cg: Any, b: Any, sig: Any, args: Any) -> Any:
        _, _, _, size, q, keys, out, stride = args
        sums = [[cgutils.alloca_once(b, vec.VF) for _ in range(wide)] for _ in range(rows)]
        for cell in [cell for cells in sums for cell in cells]:
            b.store(ir.Constant(vec.VF, [0.0] * LANES), cell)
        row_bytes, vector_bytes = b.mul(size, ir.Constant(I64, 4)), ir.Constant(I64, LANES * SIZES[stored])
        tile_bytes = b.mul(size, vector_bytes)
        with cgutils.for_range(b, size) as loop:
            first = b.add(keys, b.mul(loop.index, vector_bytes))
            columns = [vec.load_ir(b, b.add(first, b.mul(tile_bytes, ir.Constant(I64, c))), stored) for c in range(wide)]
            at = b.add(q, b.mul(loop.index, ir.Constant(I64, 4)))
            for row, cells in enumerate(sums):
                value = vec.splat_ir(b, b.load(b.inttoptr(b.add(at, b.mul(row_bytes, ir.Constant(I64, row))), vec.F32.as_pointer())))
                for cell, column in zip(cells, columns):
                    b.store(vec.fma_ir(b, value, column, b.load(cell)), cell)
        for row, cells in enumerate(sums):
            for c, cell in enumerate(cells):
                place = b.add(b.add(out, b.mul(stride, ir.Constant(I64, row))), ir.Constant(I64, 4 * LANES * c))
                vec.store_ir(b, place, b.load(cell), FLOAT32)
        return cg.get_dummy_value()

    return types.none(queries, tiles, kind, *[types.int64] * 5), generate


@intrinsic(prefer_literal=True)
def _value_tile(
    context: Any, queries: Any, columns: Any, kind: Any, weights: Any, weights_stride: Any, slot: Any, slot_bytes: Any, count: Any,
    out: Any, out_stride: Any,
) -> Any:  # fmt: skip
    """out [queries, columns * 16] += weights [queries, count] @ values of `count` slots, key after key."""
    rows, wide, stored = (vec.literal_int(x) for x in (queries, columns, kind))

    def generate(cg: Any, b: Any, sig: Any, args: Any) -> Any:
        weights, stride, slot, slot_bytes, count, out, out_stride = args[3:]
        places = [(row, column) for row in range(rows) for column in range(wide)]
        at = [b.add(b.add(out, b.mul(out_stride, ir.Constant(I64, row))), ir.Constant(I64, 4 * LANES * c)) for row, c in places]
        sums = [cgutils.alloca_once(b, vec.VF) for _ in places]
        for cell, place in zip(sums, at):
            b.store(vec.load_ir(b, place, FLOAT32), cell)
        with cgutils.for_range(b, count) as loop:
            start = b.add(slot, b.mul(loop.index, slot_bytes))
            values = [vec.load_ir(b, b.add(start, ir.Constant(I64, LANES * SIZES[stored] * c)), stored) for c in range(wide)]
            first = b.add(weights, b.mul(loop.index, ir.Constant(I64, 4)))
            shares = [b.load(b.inttoptr(b.add(first, b.mul(stride, ir.Constant(I64, r))), vec.F32.as_pointer())) for r in range(rows)]
            for cell, (row, column) in zip(sums, places):
                b.store(vec.fma_ir(b, vec.splat_ir(b, shares[row]), values[column], b.load(cell)), cell)
        for cell, place in zip(sums, at):
            vec.store_ir(b, place, b.load(cell), FLOAT32)
        return cg.get_dummy_value()

    return types.none(queries, columns, kind, *[types.int64] * 7), generate


@njit(inline="always")
def _size(kind: Any) -> Any:
    return 4 if kind == FLOAT32 else 2


@njit(inline="always")
def _softmax_weights(scores: Any, first: Any, last: Any, softcap: Any) -> Any:
    """scores[first:last] become exp(score - maximum); returns their sum. Lanes are by place in the row."""
    start = first // LANES * LANES
    lowest, zero = vec.splat(types.float32(-float("inf"))), vec.splat(types.float32(0.0))
    top = lowest
    for j in range(start, last, LANES):
        value = vec.load(scores + 4 * j, FLOAT32)
        if softcap > 0:
            value = vec.mul(vec.splat(softcap), vec.tanh(value))
            vec.store(scores + 4 * j, value, FLOAT32)
        value = vec.first_lanes(last - j, value, lowest)
        top = vec.larger(vec.first_lanes(first - j, lowest, value), top)
    maximum = vec.splat(vec.max_lanes(top))
    total = zero
    for j in range(start, last, LANES):
        value = vec.exp(vec.sub(vec.load(scores + 4 * j, FLOAT32), maximum))
        value = vec.first_lanes(last - j, value, zero)
        value = vec.first_lanes(first - j, zero, value)
        vec.store(scores + 4 * j, value, FLOAT32)
        total = vec.add(total, value)
    return vec.sum_lanes(total)


@njit
def _add_values(rows: Any, columns: Any, kind: Any, a: Any, table: Any, head: Any, weights: Any, first: Any, last: Any, out: Any) -> None:
    """out [rows, W] += weights [rows, first:last] @ values, page after page, `columns` vectors at a time."""
    literally(rows), literally(columns), literally(kind)
    size, width, stride = vec.load_i64(a + PAGE_SIZE), vec.load_i64(a + WIDTH), vec.load_i64(a + SCORES_STRIDE)
    slots = vec.load_i64(a + PAGE_TILES) * LANES
    number = width * _size(kind)
    for index in range(first // size, (last + size - 1) // size):
        begin, end = max(first, index * size), min(last, (index + 1) * size)
        page = vec.load_i32(table + 4 * index)
        slot = vec.load_i64(a + VALUES) + ((page * vec.load_i64(a + KV_HEADS) + head) * slots + begin - index * size) * number
        column = 0
        while width - column >= columns * LANES:
            _value_tile(
                rows,
                columns,
                kind,
                weights + 4 * begin,
                stride,
                slot + column * _size(kind),
                number,
                end - begin,
                out + 4 * column,
                4 * width,
            )
            column += columns * LANES
        while column < width:
            _value_tile(
                rows, 1, kind, weights + 4 * begin, stride, slot + column * _size(kind), number, end - begin, out + 4 * column, 4 * width
            )
            column += LANES


@njit
def _attend_tile(rows: Any, columns: Any, kind: Any, a: Any, scratch: Any, row: Any, head: Any, query: Any) -> None:
    """Queries query .. query + rows of one row and KV head, numbered token * group + head in the group."""
    literally(rows), literally(columns), literally(kind)
    dim, width, group = vec.load_i64(a + DIM), vec.load_i64(a + WIDTH), vec.load_i64(a + GROUP)
    size, tiles, stride = vec.load_i64(a + PAGE_SIZE), vec.load_i64(a + PAGE_TILES), vec.load_i64(a + SCORES_STRIDE)
    kv_heads, window = vec.load_i64(a + KV_HEADS), vec.load_i64(a + WINDOW)
    table = vec.load_i64(a + TABLES) + 4 * row * vec.load_i64(a + TABLE_STRIDE)
    past = vec.load_i32(vec.load_i64(a + PAST) + 4 * row)
    start = vec.load_i32(vec.load_i64(a + STARTS) + 4 * row)
    q, out, scores = scratch, scratch + 4 * MAX_TILE * dim, scratch + 4 * MAX_TILE * (dim + width)

    for r in range(rows):
        source = vec.load_i64(a + Q) + (start + (query + r) // group) * vec.load_i64(a + Q_STRIDE)
        source += (head * group + (query + r) % group) * dim * _size(kind)
        for d in range(dim):
            vec.store_f32(q + 4 * (r * dim + d), vec.load_number(source + d * _size(kind), kind) * vec.load_f32(a + SCALE))
    shortest, longest = past + query // group + 1, past + (query + rows - 1) // group + 1
    lowest = max(0, shortest - window) if window else 0
    for index in range(lowest // size, (longest + size - 1) // size):
        tile = vec.load_i64(a + KEYS) + (vec.load_i32(table + 4 * index) * kv_heads + head) * tiles * dim * LANES * _size(kind)
        j, end = index * size, min(longest, (index + 1) * size)
        while j < end:  # lanes past the page's end are written over next
            if rows <= 4 and end - j > LANES:
                _score_tiles(rows, 2, kind, dim, q, tile, scores + 4 * j, stride)
                tile += 2 * dim * LANES * _size(kind)
                j += 2 * LANES
            else:
                _score_tiles(rows, 1, kind, dim, q, tile, scores + 4 * j, stride)
                tile += dim * LANES * _size(kind)
                j += LANES

    for place in range(0, rows * width, LANES):
        vec.store(out + 4 * place, vec.splat(types.float32(0.0)), FLOAT32)
    if not window:
        for r in range(rows):
            length = past + (query + r) // group + 1
            total = _softmax_weights(scores + r * stride, 0, length, vec.load_f32(a + SOFTCAP))
            vec.store_f32(q + 4 * r, total)  # the queries are not needed any more
        _add_values(rows, columns, kind, a, table, head, scores, 0, shortest, out)
    for r in range(rows):
        length = past + (query + r) // group + 1
        first = shortest
        if window:
            first = max(0, length - window)
            vec.store_f32(q + 4 * r, _softmax_weights(scores + r * stride, first, length, vec.load_f32(a + SOFTCAP)))
        if first < length:
            _add_values(1, columns, kind, a, table, head, scores + r * stride, first, length, out + 4 * r * width)
        total = vec.splat(vec.load_f32(q + 4 * r))
        number = (start + (query + r) // group) * kv_heads * group + head * group + (query + r) % group
        target = vec.load_i64(a + OUT) + number * width * _size(kind)
        for d in range(0, width, LANES):
            vec.store(target + d * _size(kind), vec.div(vec.load(out + 4 * (r * width + d), FLOAT32), total), kind)


@cache
def attention_kernel(kind: int, source: str = vec.SOURCE) -> Any:
    """The compiled kernel for one kind of stored numbers: a C function of the address of an argument block.

    Work items are int32 [row, kv head, first token of the row's tokens in this step, tokens]; the threads draw them one
    after the other. source: part of Numba's cache key, so that changed vector instructions are compiled anew.
    """

    def attend(a: Any) -> Any:
        assert source
        items, count = vec.load_i64(a + ITEMS), vec.load_i64(a + ITEM_COUNT)
        scratch = vec.load_i64(a + SCRATCH) + vec.take_ticket(a + THREADS) * vec.load_i64(a + SCRATCH_BYTES)
        group = vec.load_i64(a + GROUP)
        item = vec.take_ticket(a + TICKETS)
        while item < count:
            row, head = vec.load_i32(items + 16 * item), vec.load_i32(items + 16 * item + 4)
            query = vec.load_i32(items + 16 * item + 8) * group
            end = query + vec.load_i32(items + 16 * item + 12) * group
            while query < end:
                if end - query >= 8:
                    _attend_tile(8, 2, kind, a, scratch, row, head, query)
                    query += 8
                elif end - query >= 4:
                    _attend_tile(4, 4, kind, a, scratch, row, head, query)
                    query += 4
                elif end - query == 3:
                    _attend_tile(3, 4, kind, a, scratch, row, head, query)
                    query += 3
                elif end - query == 2:
                    _attend_tile(2, 4, kind, a, scratch, row, head, query)
                    query += 2
                else:
                    _attend_tile(1, 4, kind, a, scratch, row, head, query)
                    query += 1
            item = vec.take_ticket(a + TICKETS)

    return cfunc(types.void(types.int64), cache=True)(attend)


@cache
def store_kernel(kind: int, source: str = vec.SOURCE) -> Any:
    """Puts the step's keys and values into their slots; threads draw 16 tokens at a time."""

    def store(a: Any) -> Any:
        assert source
        dim, width, kv_heads = vec.load_i64(a + DIM), vec.load_i64(a + WIDTH), vec.load_i64(a + KV_HEADS)
        size, tiles, count = vec.load_i64(a + PAGE_SIZE), vec.load_i64(a + PAGE_TILES), vec.load_i64(a + TOKEN_COUNT)
        first = vec.take_ticket(a + STORE_TICKETS) * 16
        while first < count:
            for token in range(first, min(first + 16, count)):
                slot = vec.load_i64(vec.load_i64(a + SLOTS) + 8 * token)
                page, place = slot // size, slot % size
                for head in range(kv_heads):
                    key = vec.load_i64(a + NEW_KEYS) + token * vec.load_i64(a + NEW_KEYS_STRIDE) + head * dim * _size(kind)
                    value = vec.load_i64(a + NEW_VALUES) + token * vec.load_i64(a + NEW_VALUES_STRIDE) + head * dim * _size(kind)
                    tile = (page * kv_heads + head) * tiles + place // LANES
                    key_to = vec.load_i64(a + KEYS) + (tile * dim * LANES + place % LANES) * _size(kind)
                    value_to = vec.load_i64(a + VALUES) + (tile * LANES + place % LANES) * width * _size(kind)
                    for d in range(dim):
                        vec.copy_number(key + d * _size(kind), key_to + d * LANES * _size(kind), kind)
                        vec.copy_number(value + d * _size(kind), value_to + d * _size(kind), kind)
            first = vec.take_ticket(a + STORE_TICKETS) * 16

    return cfunc(types.void(types.int64), cache=True)(store)
