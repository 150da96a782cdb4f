"""From logits to a token: ties, extreme settings, filters, penalties, noise."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from pipeline.engine.request import Sampling
from pipeline.engine.sampler import Draw, candidates, choose, draw_tokens, penalise, prompt_digest, uniform
from pipeline.model import logit_summary
from pipeline.model.logit_summary import summarise

LOGITS = np.array([1.0, 3.0, 3.0, 0.5, 0.0, 2.5])


def draw(position=0, answer=(), prompt=(1, 2), **sampling):
    return Draw(Sampling(**sampling), prompt_digest(prompt), 0, position, prompt, answer)


def draw_token(logits, draw):
    return draw_tokens(torch.from_numpy(logits)[None], [draw])[0]


def pick(logits, *draws, dtype=torch.float32, usable=None):
    tensor = torch.tensor(np.atleast_2d(logits), dtype=dtype)
    return choose(tensor, list(draws), usable or tensor.shape[1])


def test_greedy_takes_the_lowest_id_of_equal_logits():
    assert pick(LOGITS, draw())[0].token_id == 1
    rng = np.random.default_rng(0)
    many = rng.integers(0, 4, (50, 5000)).astype(np.float64)
    assert [c.token_id for c in pick(many, *[draw()] * 50, dtype=torch.bfloat16)] == many.argmax(axis=1).tolist()


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 1e-6}, {"temperature": 1e-300}, {"temperature": 1.0, "top_p": 0.0}, {"temperature": 1.0, "top_p": 1e-9},
        {"temperature": 1.0, "top_k": 1}, {"temperature": 1.0, "min_p": 1.0},
        {"temperature": 100.0, "top_k": 1, "top_p": 0.0, "min_p": 1.0},
    ],
)  # fmt: skip
def test_the_narrowest_settings_leave_the_likeliest_token(sampling):
    logits = np.array([0.0, 5.0, 4.0, 1.0])
    assert all(draw_token(logits, draw(position=n, **sampling)) == 1 for n in range(20))


def test_top_k_larger_than_the_vocabulary_keeps_all():
    wide = [draw_token(LOGITS, draw(position=n, temperature=2.0, top_k=1000)) for n in range(50)]
    assert wide == [draw_token(LOGITS, draw(position=n, temperature=2.0)) for n in range(50)]


def test_filters_keep_what_they_say():
    def seen(**sampling):
        return {draw_token(LOGITS, draw(position=n, temperature=1.0, **sampling)) for n in range(400)}

    assert seen(top_k=2) == {1, 2}
    assert seen(top_k=3) == {1, 2, 5}
    assert seen(min_p=0.5) == {1, 2, 5}
    assert seen(top_p=0.6) == {1, 2}
    assert seen() == {0, 1, 2, 3, 4, 5}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"),
    [
        (7, 1.0, 0.0), (0, 0.9, 0.0), (0, 0.9999, 0.0), (600, 0.5, 0.0), (5000, 0.99, 0.0), (0, 0.0, 0.0),
        (0, 1.0, 0.3), (50, 0.95, 0.1), (0, 0.8, 0.2),
    ],
)  # fmt: skip
def test_filters_equal_a_full_sort(seed, top_k, top_p, min_p):
    rng = np.random.default_rng(seed)
    scaled = np.round(rng.standard_normal(20_000) * (0.1 + seed), 2)  # many equal values
    scaled -= scaled.max()
    order = np.argsort(-scaled, kind="stable")[: top_k or None]
    mass = np.cumsum(np.exp(scaled[order]))
    expected = order[: int(np.searchsorted(mass, top_p * mass[-1])) + 1] if top_p < 1 else order
    expected = expected[np.exp(scaled[expected]) >= min_p]
    logits = torch.from_numpy(scaled)[None]
    ids, weights = candidates(logits[0], summarise(logits), 0, Sampling(temperature=1.0, top_k=top_k, top_p=top_p, min_p=min_p))
    assert weights == pytest.approx(np.exp(scaled[ids]))
    assert len(np.setxor1d(ids, expected)) <= (1 if top_p not in (0.0, 1.0) else 0)  # a sum rounded the other way


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("vocab", [16, 63, 64, 1000, 40_009])
def test_a_summary_is_what_a_row_alone_gives_and_what_the_readable_form_gives(dtype, vocab):
    logits = (torch.randn(5, vocab, generator=torch.Generator().manual_seed(0)) * 4).round(decimals=1).to(dtype)  # many equal values
    heat = [0.5, 1.0, 3.0, 1e-30, 0.9]
    found, plain = summarise(logits, heat), logit_summary._plain(logits, torch.tensor(heat))
    assert found.ids == plain.ids == logits.double().numpy().argmax(axis=1).tolist()
    assert found.best == plain.best and np.array_equal(found.peaks, plain.peaks)
    assert found.masses == pytest.approx(plain.masses, rel=2e-5, abs=1e-30)
    for row in range(5):
        alone = summarise(logits[row : row + 1], heat[row : row + 1])
        assert np.array_equal(alone.masses[0], found.masses[row]) and alone.logsumexp(0) == found.logsumexp(row)
    assert found.logsumexp(1) == pytest.approx(float(torch.logsumexp(logits[1].double(), -1)), abs=2e-6)


def test_the_lowest_of_equal_ids_is_found_across_blocks():
    logits = torch.zeros(2, 300)
    logits[0, [70, 71, 250]] = 2.0
    logits[1] = -torch.inf
    assert summarise(logits).ids == [70, 0]
    assert np.isnan(summarise(logits).logsumexp(1))


def test_draws_follow_the_distribution():
    count = 4000
    found = Counter(draw_token(LOGITS, draw(position=n, temperature=1.0)) for n in range(count))
    expected = np.exp(LOGITS) / np.exp(LOGITS).sum()
    for token, share in enumerate(expected):
        assert found[token] / count == pytest.approx(share, abs=4 * np.sqrt(share / count))


def test_noise_is_a_function_of_seed_prompt_sample_and_position():
    base = draw(temperature=1.0)
    others = [
        replace(base, position=1), replace(base, sample=1), replace(base, prompt_digest=prompt_digest((1, 3))),
        replace(base, sampling=replace(base.sampling, seed=1)),
    ]  # fmt: skip
    assert len({uniform(x) for x in (base, *others)}) == 5
    assert uniform(base) == uniform(draw(temperature=0.3)) == 0.7117561643451332  # pinned: stored answers rest on it


def test_the_last_candidate_is_the_limit(monkeypatch):
    monkeypatch.setattr("pipeline.engine.sampler.uniform", lambda _: 1 - 2.0**-53)
    assert draw_token(np.array([1.0, 2.0, 3.0, -900.0]), draw(temperature=1.0)) == 2


def test_penalties_have_their_scope():
    logits = np.array([2.0, -2.0, 2.0, 2.0])

    def penalised(**about):
        scores = logits.copy()
        penalise(scores, draw(**about))
        return scores.tolist()

    assert penalised(prompt=(0, 1), answer=(2,), repetition_penalty=2.0) == [1.0, -4.0, 1.0, 2.0]
    assert penalised(prompt=(0,), answer=(2, 2), presence_penalty=0.5) == [2.0, -2.0, 1.5, 2.0]
    assert penalised(prompt=(0,), answer=(2, 2), frequency_penalty=0.5) == [2.0, -2.0, 1.0, 2.0]
    assert pick([[3.0, 2.9]], draw(prompt=(5,), answer=(0,), presence_penalty=0.5))[0].token_id == 1


def test_padded_vocabulary_is_never_drawn():
    logits = [0.0, 1.0, 2.0, 9.0]
    assert pick(logits, draw(logprobs=4), usable=3)[0].top_logprobs[0][0] == 2
    assert {pick(logits, draw(position=n, temperature=5.0), usable=3)[0].token_id for n in range(50)} == {0, 1, 2}


def test_logprobs_are_those_of_the_model_itself():
    choice = pick(LOGITS, draw(temperature=0.5, top_k=1, logprobs=3))[0]
    expected = LOGITS - np.log(np.exp(LOGITS).sum())
    assert choice.logprob == pytest.approx(expected[1], abs=1e-6)
    assert [i for i, _ in choice.top_logprobs] == [1, 2, 5]
    assert [p for _, p in choice.top_logprobs] == pytest.approx(expected[[1, 2, 5]], abs=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_row_that_is_not_finite_gets_no_token_and_harms_no_other(bad):
    logits = np.stack([LOGITS, LOGITS, LOGITS])
    logits[1, 4] = bad
    found = pick(logits, draw(), draw(), draw())
    assert [c.token_id for c in found] == [1, None, 1]
    assert pick(np.full((1, 6), -np.inf), draw())[0].token_id is None


def test_minus_infinity_is_left_out_of_top_logprobs():
    logits = np.array([1.0, -np.inf, -np.inf])
    assert pick(logits, draw(logprobs=3))[0].top_logprobs == ((0, 0.0),)


def test_a_constraint_limits_greedy_and_drawn_tokens():
    allowed = np.array([True, False, False, True, True, False])
    assert draw_token(LOGITS, replace(draw(), allowed=allowed)) == 0
    found = {draw_token(LOGITS, replace(draw(position=n, temperature=3.0, top_p=0.9), allowed=allowed)) for n in range(100)}
    assert found <= {0, 3, 4} and len(found) > 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_step_that_ends_no_row_draws_nothing(dtype):
    assert choose(torch.zeros(2, 100, dtype=dtype), [], 90) == []
