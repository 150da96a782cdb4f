"""An answer never depends on its company: the engine against the cache-free oracle, and against itself, bit for bit."""

import random

import pytest
import torch
from engine_requests import STOP_IDS, answers, content, make_engine, random_requests

from pipeline.core.params import ModelParams
from pipeline.engine import reference
from pipeline.engine.request import Request, Sampling
from pipeline.model.weights import load_decoder

WAYS = {
    "small pages": {"page_size": 4, "max_running_rows": 6, "max_step_tokens": 24},
    "one row": {"page_size": 32, "max_running_rows": 1},
    "odd pages, tiny steps": {"page_size": 7, "max_running_rows": 3, "max_step_tokens": 5},
    "preempted": {"page_size": 4, "max_running_rows": 12, "max_step_tokens": 64, "pages": 24},
    "no reuse": {"page_size": 16, "max_running_rows": 5, "reuse_prefixes": False},
    "longest first": {"page_size": 16, "max_running_rows": 4, "policy": "longest_first"},
}


@pytest.fixture(scope="module")
def exact(tiny_checkpoint):
    """The tiny model in float64, where another order of sums does not change a token."""
    return load_decoder(tiny_checkpoint, ModelParams(dtype="float32")).double()


@pytest.fixture(scope="module")
def oracle(exact):
    requests = random_requests(seed=0, count=20, vocab=exact.usable_vocab, max_prompt_tokens=40)
    return {(r.id, 0): reference.generate(exact, r, STOP_IDS) for r in requests}


@pytest.mark.parametrize("way", WAYS)
def test_batching_never_changes_the_answer(exact, oracle, way):
    engine = make_engine(exact, **WAYS[way])
    found = answers(engine, random_requests(seed=0, count=20, vocab=exact.usable_vocab, max_prompt_tokens=40))
    for key, expected in oracle.items():
        assert (found[key].token_ids, found[key].finish_reason) == (expected.token_ids, expected.finish_reason)
        assert found[key].token_logprobs == pytest.approx(expected.token_logprobs, abs=1e-9)
    assert (engine.stats()["preemptions"] > 0) == (way == "preempted")
    assert (engine.stats()["reused_tokens"] > 0) == (way != "no reuse")


def test_the_order_of_arrival_never_changes_the_answer(exact, oracle):
    requests = random_requests(seed=0, count=20, vocab=exact.usable_vocab, max_prompt_tokens=40)
    random.Random(1).shuffle(requests)
    found = answers(make_engine(exact, page_size=8, max_running_rows=5), requests)
    assert all(found[key].token_ids == expected.token_ids for key, expected in oracle.items())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_bits_are_equal_alone_and_in_any_company(tiny_checkpoint, dtype):
    decoder = load_decoder(tiny_checkpoint, ModelParams(dtype=dtype))
    requests = random_requests(seed=2, count=30, vocab=decoder.usable_vocab, max_prompt_tokens=60)
    together = answers(make_engine(decoder, max_running_rows=30), requests)
    random.Random(3).shuffle(requests)
    for way in WAYS.values():
        way = {**way, "pages": 50} if "pages" in way else way
        found = answers(make_engine(decoder, **way), requests[:20])
        different = [key for key, answer in found.items() if content(answer) != content(together[key])]
        assert not different, f"{way}: {different}"


def test_one_engine_answers_again_the_same_with_prompts_already_known(tiny_checkpoint):
    decoder = load_decoder(tiny_checkpoint, ModelParams(dtype="bfloat16"))
    engine = make_engine(decoder, page_size=16, max_running_rows=8)
    requests = random_requests(seed=5, count=12, vocab=decoder.usable_vocab)
    first = answers(engine, requests)
    before = engine.stats()["reused_tokens"]
    again = answers(engine, requests)
    assert engine.stats()["reused_tokens"] > before
    assert all(content(again[key]) == content(first[key]) for key in first)


def test_a_prompt_that_is_forgotten_is_computed_from_its_first_token(tiny_checkpoint):
    decoder = load_decoder(tiny_checkpoint, ModelParams(dtype="bfloat16"))
    engine = make_engine(decoder, page_size=16)
    requests = [Request(1, tuple(range(3, 53)), Sampling(max_new_tokens=8))]
    first = answers(engine, requests)
    engine.forget_prompts()
    assert content(answers(engine, requests)[1, 0]) == content(first[1, 0])
    assert engine.stats()["reused_tokens"] == 0


def test_samples_of_one_prompt_share_its_pages_and_differ(tiny_checkpoint):
    decoder = load_decoder(tiny_checkpoint, ModelParams(dtype="float32"))
    prompt = tuple(range(3, 53))
    sampling = Sampling(max_new_tokens=8, temperature=1.0)
    engine = make_engine(decoder, page_size=16, max_running_rows=8)
    found = answers(engine, [Request(1, prompt, sampling, sample=n) for n in range(8)])
    assert engine.stats()["reused_tokens"] == 7 * 48
    assert engine.stats()["peak_pages"] <= 3 + 8
    assert len({c.token_ids for c in found.values()}) > 1
    alone = answers(make_engine(decoder, max_running_rows=1, reuse_prefixes=False), [Request(9, prompt, sampling, sample=5)])
    assert content(alone[9, 5]) == content(found[1, 5])


def test_the_seed_and_the_prompt_choose_the_draw_and_the_id_does_not(tiny_checkpoint):
    decoder = load_decoder(tiny_checkpoint, ModelParams(dtype="float32"))

    def draw(request):
        return next(iter(make_engine(decoder).generate([request]))).token_ids

    sampling = Sampling(max_new_tokens=10, temperature=1.0, seed=1)
    assert draw(Request(1, (5, 6, 7), sampling)) == draw(Request(2, (5, 6, 7), sampling))
    assert draw(Request(1, (5, 6, 7), sampling)) != draw(Request(1, (5, 6, 7), Sampling(max_new_tokens=10, temperature=1.0, seed=2)))


def test_memory_and_waiting_room_do_not_grow_with_the_rows(tiny_checkpoint):
    decoder = load_decoder(tiny_checkpoint, ModelParams(dtype="float32"))
    engine = make_engine(decoder, page_size=16, max_running_rows=16)
    taken = 0

    def stream():
        nonlocal taken
        for number in range(1500):
            taken += 1
            yield Request(number, (3 + number % 300, 4, 5), Sampling(max_new_tokens=1))

    done = 0
    for _ in engine.generate(stream()):
        done += 1
        assert taken - done <= 1024 + 16
    assert done == 1500
    assert engine.stats()["peak_pages"] <= 16


def test_numerics_names_plan_processor_and_torch(tiny_checkpoint):
    engine = make_engine(load_decoder(tiny_checkpoint, ModelParams(dtype="float32")))
    assert torch.__version__ in engine.numerics
    assert "tiled" in engine.numerics
