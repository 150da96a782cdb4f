"""The compiled kernels against plain PyTorch, and against themselves cut differently: bits, not closeness."""

import numpy as np
import pytest
import torch

from pipeline.model import row_kernels
from pipeline.model.attention import AttentionSpec, FullAttention
from pipeline.model.decoder import RMSNorm
from pipeline.model.kv_cache import CacheShape, PagedAttention, RaggedBatch
from pipeline.model.linear import KERNELS, RUNGS, Linear, choose_kernel, padded_rows
from pipeline.model.rotary import rotate
from pipeline.model.tiled_attention import TiledAttention, work_items

LENGTHS = (50, 1, 33, 130, 17)
SHAPES = {"grouped by 3": (64, 9, 3), "narrow": (8, 8, 4), "wide": (128, 4, 4), "grouped by 7": (24, 7, 1), "many heads": (16, 20, 2)}
SPECS = {"full": {}, "window": {"window": 7}, "softcap": {"softcap": 5.0}, "both": {"window": 40, "softcap": 3.0}}
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TOLERANCE = {torch.float32: 5e-6, torch.bfloat16: 3e-2, torch.float16: 4e-3}


def tensors(dtype, dim, heads, kv_heads):
    generator = torch.Generator().manual_seed(0)
    count = sum(LENGTHS) + 2  # two padding tokens
    return [torch.randn(count, h, dim, generator=generator).to(dtype) for h in (heads, kv_heads, kv_heads)]


def tables(page_size):
    """Page tables of the rows, pages in a random order."""
    need = [-(-length // page_size) for length in LENGTHS]
    pages = np.random.default_rng(1).permutation(sum(need)).astype(np.int32)
    out, at = np.zeros((len(LENGTHS), max(need)), np.int32), 0
    for row, count in enumerate(need):
        out[row, :count] = pages[at : at + count]
        at += count
    return out, sum(need)


def run_steps(attention, page_tables, page_size, inputs, spec, chunk):
    """Feed every row in chunks of at most `chunk` tokens, all rows side by side; returns [N, H, D]."""
    q, k, v = inputs
    begin = np.concatenate([[0], np.cumsum(LENGTHS)])
    out, done = torch.zeros_like(q), np.zeros(len(LENGTHS), np.int32)
    while (done < LENGTHS).any():
        rows = np.flatnonzero(done < LENGTHS)
        counts = np.minimum(np.array(LENGTHS)[rows] - done[rows], chunk)
        places = torch.cat([torch.arange(begin[r] + done[r], begin[r] + done[r] + c) for r, c in zip(rows, counts)])
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        attention.begin(RaggedBatch(starts, done[rows], page_tables[rows], page_size))
        out[places] = attention.attend(0, q[places], k[places], v[places], spec)
        done[rows] += counts
    return out[:-2]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("spec", SPECS)
def test_tiles_give_what_plain_attention_gives_and_the_same_bits_in_any_chunks_and_pages(dtype, shape, spec):
    dim, heads, kv_heads = SHAPES[shape]
    inputs, asked = tensors(dtype, dim, heads, kv_heads), AttentionSpec(dim**-0.5, **SPECS[spec])
    found = []
    for page_size, chunk in ((256, 1000), (16, 13), (5, 40), (32, 1)):
        page_tables, pages = tables(page_size)
        attention = TiledAttention(CacheShape(1, kv_heads, dim, pages, page_size), dtype)
        found.append(run_steps(attention, page_tables, page_size, inputs, asked, chunk))
    assert all(torch.equal(found[0], other) for other in found[1:])
    begin = 0
    for length in LENGTHS:
        rows = slice(begin, begin + length)
        exact = FullAttention().attend(0, *(x[rows].double() for x in inputs), asked)
        assert (found[0][rows].double() - exact).abs().max() < TOLERANCE[dtype]
        begin += length


@pytest.mark.parametrize("spec", SPECS)
def test_plain_paged_attention_equals_the_oracles(spec):
    dim, heads, kv_heads = SHAPES["grouped by 3"]
    inputs, asked = tensors(torch.float64, dim, heads, kv_heads), AttentionSpec(dim**-0.5, **SPECS[spec])
    page_tables, pages = tables(16)
    attention = PagedAttention(CacheShape(1, kv_heads, dim, pages, 16), torch.float64, torch.device("cpu"))
    found, begin = run_steps(attention, page_tables, 16, inputs, asked, 20), 0
    for length in LENGTHS:
        rows = slice(begin, begin + length)
        assert torch.allclose(found[rows], FullAttention().attend(0, *(x[rows] for x in inputs), asked), atol=1e-12)
        begin += length


@pytest.mark.parametrize("make", [TiledAttention, lambda shape, dtype: PagedAttention(shape, dtype, torch.device("cpu"))])
def test_padding_tokens_get_zeros(make):
    inputs = tensors(torch.float32, 8, 8, 4)
    attention = make(CacheShape(1, 4, 8, 30, 16), torch.float32)
    page_tables, _ = tables(16)
    starts = np.concatenate([[0], np.cumsum(LENGTHS)]).astype(np.int32)
    attention.begin(RaggedBatch(starts, np.zeros(len(LENGTHS), np.int32), page_tables, 16))
    assert torch.equal(attention.attend(0, *inputs, AttentionSpec(1.0))[-2:], torch.zeros(2, 8, 8))


def test_a_copied_page_holds_what_the_source_holds():
    attention = TiledAttention(CacheShape(2, 2, 8, 3, 20), torch.bfloat16)
    for store in (*attention.keys, *attention.values):
        store.copy_(torch.randn(store.shape))
    attention.copy(0, 2, 5)
    assert all(torch.equal(store[0], store[2]) for store in (*attention.keys, *attention.values))


def test_work_items_cover_every_token_once():
    page_tables, _ = tables(16)
    starts = np.concatenate([[0], np.cumsum(LENGTHS)]).astype(np.int32)
    items = work_items(RaggedBatch(starts, np.zeros(len(LENGTHS), np.int32), page_tables, 16), kv_heads=2)
    covered = [(row, head, first + i) for row, head, first, count in items.tolist() for i in range(count)]
    assert sorted(covered) == [(r, h, t) for r, length in enumerate(LENGTHS) for h in range(2) for t in range(length)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("inputs", "outputs"), [(64, 100), (100, 64), (1100, 48)])
@pytest.mark.parametrize("bias", [False, True])
def test_a_packed_row_is_the_same_at_any_row_count(dtype, inputs, outputs, bias):
    generator = torch.Generator().manual_seed(0)
    layer = Linear(inputs, outputs, bias).to(dtype)
    layer.weight.data = torch.randn(outputs, inputs, generator=generator).to(dtype) * inputs**-0.5
    if bias:
        layer.bias.data = torch.randn(outputs, generator=generator).to(dtype)
    x = torch.randn(600, inputs, generator=generator).to(dtype)
    plain = layer(x)
    layer.pack()
    whole = layer(x)
    assert (whole.float() - plain.float()).abs().max() < TOLERANCE[dtype] * 4
    for rows in (1, 2, 3, 5, 7, 8, 9, 31, 64, 100, 150, 257, 511, 513):
        assert torch.equal(layer(x[:rows].clone()), whole[:rows])
        assert torch.equal(layer(x[-rows:].clone()), whole[-rows:])


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_multiplies(kernel):
    weight, x = torch.randn(32, 1100), torch.randn(64, 1100)
    assert torch.allclose(KERNELS[kernel](weight, None)(x), x @ weight.T, atol=1e-3)


def test_a_kernel_that_sees_the_company_is_not_chosen(monkeypatch):
    def nosy(weight, bias):
        return lambda x: x @ weight.T + 1e-3 * x.shape[0]

    monkeypatch.setitem(KERNELS, "onednn-16", nosy)
    monkeypatch.setattr("pipeline.model.linear._chosen", {})
    assert choose_kernel(torch.randn(16, 48), None) != "onednn-16"


def test_steps_are_padded_to_known_row_counts():
    assert [padded_rows(n) for n in (1, 2, 3, 9, 500, 512, 513, 1024, 1500)] == [2, 2, 4, 12, 512, 512, 514, 1024, 1536]
    assert all(padded_rows(n) in RUNGS for n in range(1, 513))


def plain_forms(x, weight, cos, sin):
    """Norm, turn and gate of x [N, 192] in float64, by the decoder's own readable code: kernels leave float64 alone."""
    x, weight, cos, sin = (y.double() for y in (x, weight, cos, sin))
    norm = RMSNorm(192, 1e-5, 1.0).double()
    norm.weight.data = weight
    gate, up = x.chunk(2, dim=-1)
    return norm(x), rotate(x.unflatten(1, (3, 64)), (cos, sin)), torch.nn.functional.silu(gate) * up


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_row_kernels_give_what_the_plain_forms_give_and_the_same_bits_in_any_company(dtype):
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(*size, generator=generator).to(dtype) for size in ((700, 192), (192,)))
    angles = torch.rand(700, 1, 32, generator=generator) * 6
    cos, sin = (torch.cat((y, y), -1).to(dtype) for y in (angles.cos(), angles.sin()))

    def compiled(rows):
        turned = x[rows].unflatten(1, (3, 64)).clone()
        assert row_kernels.turn(turned, cos[rows], sin[rows])
        return row_kernels.rms_norm(x[rows], weight, 1.0, 1e-5), turned, row_kernels.silu_gate(x[rows])

    whole = compiled(slice(None))
    for found, exact in zip(whole, plain_forms(x, weight, cos, sin)):
        rounding = torch.finfo(dtype).eps * exact.abs() + 16 * torch.finfo(torch.float32).eps
        assert ((found.double() - exact).abs() <= rounding).all()
    for rows in (slice(0, 1), slice(3, 20), slice(690, 700)):
        assert all(torch.equal(part, all_rows[rows]) for part, all_rows in zip(compiled(rows), whole))


def test_row_kernels_take_any_width_of_norm_and_gate_and_leave_the_rest_to_plain_code():
    x, weight = torch.randn(3, 50), torch.randn(50)
    norm = RMSNorm(50, 1e-5, 0.0).double()
    norm.weight.data = weight.double()
    assert torch.allclose(row_kernels.rms_norm(x, weight, 0.0, 1e-5).double(), norm(x.double()), atol=1e-5)
    assert torch.allclose(row_kernels.silu_gate(x), torch.nn.functional.silu(x[:, :25]) * x[:, 25:], atol=1e-5)
    assert row_kernels.rms_norm(x[:, :8], weight[:8], 0.0, 1e-5) is None and row_kernels.silu_gate(x.double()) is None
    heads = torch.randn(3, 2, 24)
    assert not row_kernels.turn(heads, torch.ones(3, 1, 24), torch.zeros(3, 1, 24))  # pairs that are not whole vectors


def test_a_gate_far_from_zero_is_closed_or_open():
    gate_up = torch.tensor([[-3e38, -100.0, 100.0, 3e38] * 8 + [1.0] * 32])
    assert row_kernels.silu_gate(gate_up)[0, :4].tolist() == pytest.approx([0, 0, 100.0, 3e38], rel=1e-6, abs=1e-35)
