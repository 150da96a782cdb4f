"""FlashAttention's way over pages, with a stand-in for the kernel that follows torch's documentation of varlen_attn."""

import numpy as np
import pytest
import torch
from engine_requests import STOP_IDS, answers, make_engine, random_requests
from torch.nn import functional

from pipeline.core.params import ModelParams
from pipeline.engine import reference
from pipeline.model.attention import AttentionSpec
from pipeline.model.kv_cache import CacheShape, PagedAttention, RaggedBatch
from pipeline.model.varlen_attention import VarlenAttention, make_varlen, passes_trial
from pipeline.model.weights import load_decoder

SHAPE = CacheShape(layers=1, kv_heads=2, head_dim=16, pages=8, page_size=8)
CPU = torch.device("cpu")


def varlen(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, scale, window_size, enable_gqa, seqused_k=None, block_table=None,
           num_splits=None):  # fmt: skip
    """What the documentation says, row by row: bottom-right causal, `window_size` = keys to the left and right."""
    assert enable_gqa
    out = torch.empty_like(query)
    for row in range(len(cu_seq_q) - 1):
        q = query[cu_seq_q[row] : cu_seq_q[row + 1]]
        if block_table is None:
            k, v = (x[cu_seq_k[row] : cu_seq_k[row + 1]] for x in (key, value))
        else:
            assert num_splits == 1
            pages = block_table[row, : -(-int(seqused_k[row]) // key.shape[1])].long()
            k, v = (x[pages].flatten(0, 1)[: int(seqused_k[row])] for x in (key, value))
        assert len(q) <= max_q
        assert len(k) <= max_k
        at = torch.arange(len(k) - len(q), len(k))[:, None]
        keys = torch.arange(len(k))[None]
        seen = (keys <= at + window_size[1]) & ((keys >= at - window_size[0]) | (window_size[0] < 0))
        q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
        out[cu_seq_q[row] : cu_seq_q[row + 1]] = functional.scaled_dot_product_attention(
            q, k, v, seen, scale=scale, enable_gqa=True)[0].transpose(0, 1)  # fmt: skip
    return out


@pytest.mark.parametrize("in_place", [True, False])
def test_a_kernel_that_does_what_is_documented_passes_the_trial(in_place):
    assert passes_trial(varlen, in_place, SHAPE, torch.bfloat16, CPU)


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("wrong", ["no window", "top-left causal", "refuses"])
def test_a_kernel_that_does_something_else_does_not(in_place, wrong):
    def other(*args, **options):
        if wrong == "refuses":
            raise RuntimeError("head size not supported")
        options |= {"window_size": (-1, 0)} if wrong == "no window" else {"window_size": (-1, -1)}
        return varlen(*args, **options)

    assert not passes_trial(other, in_place, SHAPE, torch.bfloat16, CPU)


def test_soft_caps_take_the_plain_path():
    spec = AttentionSpec(scale=0.25, softcap=5.0)
    plain, flash = PagedAttention(SHAPE, torch.float32, CPU), VarlenAttention(SHAPE, torch.float32, CPU, varlen, False)
    q, k, v = torch.randn(5, 4, 16), torch.randn(5, 2, 16), torch.randn(5, 2, 16)
    batch = RaggedBatch(np.array([0, 5], np.int32), np.array([0], np.int32), np.array([[3]], np.int32), 8)
    for attention in (plain, flash):
        attention.begin(batch)
    assert torch.equal(plain.attend(0, q, k, v, spec), flash.attend(0, q, k, v, spec))


@pytest.mark.parametrize("in_place", [True, False])
def test_the_engine_over_it_gives_the_tokens_of_the_oracle(tiny_checkpoint, monkeypatch, in_place):
    decoder = load_decoder(tiny_checkpoint, ModelParams(dtype="float32")).double()
    monkeypatch.setattr("pipeline.engine.engine.make_attention", lambda *where: VarlenAttention(*where, varlen, in_place))
    requests = random_requests(seed=0, count=12, vocab=decoder.usable_vocab, max_prompt_tokens=40)
    found = answers(make_engine(decoder, page_size=4, max_running_rows=6, max_step_tokens=24), requests)
    for request in requests:
        assert found[request.id, 0].token_ids == reference.generate(decoder, request, STOP_IDS).token_ids


def test_without_a_card_the_plain_path_is_taken():
    assert type(make_varlen(SHAPE, torch.bfloat16, CPU)) is PagedAttention
