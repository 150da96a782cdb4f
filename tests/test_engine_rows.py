"""What becomes of single rows: limits, stops, failures, memory. One bad row never ends or moves the others."""

from dataclasses import replace

import pytest
import torch
from engine_requests import answers, content, make_engine, random_requests

from pipeline.core.params import ModelParams
from pipeline.engine import reference
from pipeline.engine.request import Completion, Request, Sampling
from pipeline.model.weights import load_decoder


@pytest.fixture(scope="module")
def decoder(tiny_checkpoint):
    return load_decoder(tiny_checkpoint, ModelParams(dtype="float32"))


class Faulty:
    """A decoder that breaks in a chosen way: `before` may raise, `after` may change the logits."""

    def __init__(self, decoder, before=None, after=None):
        self.config, self.usable_vocab, self.dtype, self.device = decoder.config, decoder.usable_vocab, decoder.dtype, decoder.device
        self._decoder, self._before, self._after = decoder, before, after

    def __call__(self, token_ids, positions, attention, logits_at):
        if self._before:
            self._before(token_ids, positions, logits_at)
        logits = self._decoder(token_ids, positions, attention, logits_at)
        return self._after(logits, token_ids, logits_at) if self._after else logits


class StopAfter:
    """Ends an answer at its n-th token."""

    def __init__(self, count):
        self.left = count

    def push(self, token_id):
        self.left -= 1
        return "enough" if self.left == 0 else None


class Even:
    """Allows even token ids only, and remembers what it was told."""

    def __init__(self, size):
        self.mask, self.taken = torch.arange(size).numpy() % 2 == 0, []

    def allowed(self):
        return self.mask

    def accept(self, token_id):
        self.taken.append(token_id)


def test_a_prompt_over_the_limit_is_named_and_the_others_are_untouched(decoder):
    limit = decoder.config.max_model_len
    lengths = {1: 5, 2: limit - 1, 3: limit + 1, 4: limit, 5: 40}
    requests = [Request(i, tuple(3 + k % 300 for k in range(n)), Sampling(max_new_tokens=6)) for i, n in lengths.items()]
    found = answers(make_engine(decoder), requests)
    assert {i: found[i, 0].finish_reason for i in lengths} == {1: "length", 2: "length", 3: "error", 4: "error", 5: "length"}
    assert len(found[2, 0].token_ids) == 1 and found[2, 0].finish_detail == "max_model_len"
    assert found[3, 0].error.startswith("prompt_too_long:") and str(limit + 1) in found[3, 0].error
    assert all(content(found[i, 0]) == content(reference_like(decoder, requests[i - 1])) for i in (1, 5))


def reference_like(decoder, request):
    return next(iter(make_engine(decoder, max_running_rows=1).generate([request])))


@pytest.mark.parametrize(
    ("tokens", "code"), [((), "empty_prompt"), ((3, 10**6), "token_out_of_range"), ((3, -1), "token_out_of_range")]
)  # fmt: skip
def test_prompts_that_cannot_be_run_are_refused_by_name(decoder, tokens, code):
    request = Request(7, tokens)
    assert next(iter(make_engine(decoder).generate([request]))).error.startswith(code)
    assert reference.generate(decoder, request).error.startswith(code)


def test_a_row_larger_than_the_cache_is_refused_by_name(decoder):
    found = answers(make_engine(decoder, page_size=4, pages=4), [
        Request(1, (3,) * 10, Sampling(max_new_tokens=7)), Request(2, (3,) * 10, Sampling(max_new_tokens=6))])  # fmt: skip
    assert found[1, 0].error.startswith("kv_memory_too_small") and found[2, 0].error is None


def test_stop_ids_end_an_answer_unless_ignored(decoder):
    plain = reference.generate(decoder, Request(1, (5, 9), Sampling(max_new_tokens=8)))
    stop = plain.token_ids[3]
    cut = plain.token_ids[: plain.token_ids.index(stop) + 1]
    requests = [Request(1, (5, 9), Sampling(max_new_tokens=8)), Request(2, (5, 9), Sampling(max_new_tokens=8, ignore_eos=True))]
    found = answers(make_engine(decoder, stop_ids=(stop,)), requests)
    assert (found[1, 0].token_ids, found[1, 0].finish_reason, found[1, 0].finish_detail) == (cut, "stop", f"token {stop}")
    assert (found[2, 0].token_ids, found[2, 0].finish_reason) == (plain.token_ids, "length")


@pytest.mark.parametrize("at", [1, 4, 8])
def test_a_stopper_ends_an_answer_even_on_the_last_allowed_token(decoder, at):
    request = Request(1, (5, 9), Sampling(max_new_tokens=8), stopper=lambda: StopAfter(at))
    found = answers(make_engine(decoder), [request])[1, 0]
    assert (len(found.token_ids), found.finish_reason, found.finish_detail) == (at, "stop", "enough")


def test_a_constraint_rules_one_row_and_hears_every_token(decoder):
    watched = Even(decoder.usable_vocab)
    free, ruled = Request(1, (5, 9), Sampling(max_new_tokens=8)), Request(2, (5, 9), Sampling(max_new_tokens=8), constraint=lambda: watched)
    found = answers(make_engine(decoder), [free, ruled])
    assert all(token % 2 == 0 for token in found[2, 0].token_ids)
    assert watched.taken == list(found[2, 0].token_ids[:-1])
    assert content(found[1, 0]) == content(reference_like(decoder, free))


class InTurn(Even):
    """Allows even and odd token ids in turn."""

    def allowed(self):
        return self.mask if len(self.taken) % 2 == 0 else ~self.mask


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_answer_goes_on_from_any_of_its_tokens_as_if_never_stopped(tiny_checkpoint, dtype):
    decoder = load_decoder(tiny_checkpoint, ModelParams(dtype=dtype))
    requests = random_requests(seed=7, count=10, vocab=decoder.usable_vocab)
    requests += [
        Request(10, (5, 9), Sampling(max_new_tokens=12, logprobs=2), constraint=lambda: InTurn(decoder.usable_vocab)),
        Request(11, (5, 9), Sampling(max_new_tokens=12, temperature=1.0), stopper=lambda: StopAfter(10)),
        Request(12, tuple(range(3, 40)), Sampling(max_new_tokens=12, temperature=0.5, repetition_penalty=1.2), sample=3),
    ]
    whole = answers(make_engine(decoder, page_size=16), requests)
    for count in range(1, 12):
        cut = [replace(request, begun=beginning(whole[request.id, request.sample], count)) for request in requests]
        found = answers(make_engine(decoder, page_size=4, max_running_rows=5, max_step_tokens=16), cut)
        assert {key: content(answer) for key, answer in found.items()} == {key: content(answer) for key, answer in whole.items()}


def beginning(answer, count):
    """What was drawn of it when `count` tokens were; None when it was finished by then."""
    if len(answer.token_ids) <= count:
        return None
    top = answer.top_logprobs and answer.top_logprobs[:count]
    return Completion(0, 0, answer.token_ids[:count], answer.token_logprobs[:count], "unfinished", top_logprobs=top)


def test_what_is_under_way_is_the_beginning_of_the_answers(decoder):
    requests = random_requests(seed=7, count=10, vocab=decoder.usable_vocab)
    whole, engine, seen = answers(make_engine(decoder), requests), make_engine(decoder, page_size=4, max_running_rows=3), []
    list(engine.generate(requests, lambda: seen.extend(engine.under_way())))
    assert {answer.id for answer in seen} == {key[0] for key, answer in whole.items() if len(answer.token_ids) > 1}
    assert all(content(answer)[:3] == content(beginning(whole[answer.id, 0], len(answer.token_ids)))[:3] for answer in seen)
    assert {answer.finish_reason for answer in seen} == {"unfinished"}


def test_logits_that_are_not_finite_fail_their_row_alone(decoder):
    requests = random_requests(seed=0, count=10, vocab=decoder.usable_vocab)
    good = answers(make_engine(decoder), requests)
    marked = Request(99, (7, 7, 7, 7), Sampling(max_new_tokens=5))

    def poison(logits, token_ids, logits_at):
        logits[token_ids[logits_at] == 7] = float("nan")
        return logits

    found = answers(make_engine(Faulty(decoder, after=poison)), [*requests[:5], marked, *requests[5:]])
    assert found[99, 0].error.startswith("non_finite_logits") and found[99, 0].token_ids == ()
    hit = [key for key, answer in good.items() if 7 in answer.token_ids or requests[key[0]].token_ids[-1] == 7]
    assert len(hit) < len(good)
    assert all(content(found[key]) == content(answer) for key, answer in good.items() if key not in hit)


def test_what_lies_in_unused_slots_is_never_read(decoder):
    engine = make_engine(decoder, page_size=4, pages=8)
    request = Request(1, tuple(range(3, 20)), Sampling(max_new_tokens=8))
    expected = content(next(iter(engine.generate([request]))))
    clean = make_engine(decoder, page_size=4, pages=8)
    for store in (*clean._attention.keys, *clean._attention.values):
        store.fill_(float("nan"))
    assert content(next(iter(clean.generate([request])))) == expected


def test_running_out_of_memory_halves_the_rows_and_then_fails_one_by_name(decoder):
    requests = random_requests(seed=1, count=16, vocab=decoder.usable_vocab)
    good = answers(make_engine(decoder), requests)

    def above_four(token_ids, positions, logits_at):
        if int((logits_at > 0).sum()) > 4:
            raise torch.OutOfMemoryError("fake")

    engine = make_engine(Faulty(decoder, before=above_four), max_running_rows=16, max_step_tokens=512)
    found = answers(engine, requests)
    assert all(content(found[key]) == content(good[key]) for key in good)
    assert engine.stats()["back_offs"] > 0 and engine.stats()["max_running_rows"] <= 4

    def long_prompts(token_ids, positions, logits_at):
        if int(positions.max()) >= 90:
            raise MemoryError

    whale = Request(50, (3,) * 100, Sampling(max_new_tokens=4))
    found = answers(make_engine(Faulty(decoder, before=long_prompts), max_step_tokens=512), [*requests[:4], whale, *requests[4:]])
    assert found[50, 0].error.startswith("out_of_memory")
    assert all(content(found[key]) == content(good[key]) for key in good)


def test_other_errors_are_not_taken_for_memory(decoder):
    def broken(*_):
        raise RuntimeError("shapes do not fit")

    with pytest.raises(RuntimeError, match="shapes"):
        list(make_engine(Faulty(decoder, before=broken)).generate([Request(1, (3, 4))]))


def test_an_engine_left_in_the_middle_starts_afresh(decoder):
    requests = random_requests(seed=4, count=10, vocab=decoder.usable_vocab)
    engine = make_engine(decoder, page_size=4, max_running_rows=4)
    good = answers(engine, requests)
    stream = engine.generate(requests)
    next(stream)
    stream.close()
    engine._pages.check([])
    assert {key: content(c) for key, c in answers(engine, requests).items()} == {key: content(c) for key, c in good.items()}


def test_stopping_lets_rows_under_way_go(decoder):
    asked = 0

    def stop():
        nonlocal asked
        asked += 1
        return asked > 3

    found = list(make_engine(decoder).generate([Request(n, (3, 4, n + 5), Sampling(max_new_tokens=n + 1)) for n in range(8)], stop=stop))
    assert 0 < len(found) < 8


def test_stats_count_what_was_done(decoder):
    engine = make_engine(decoder, page_size=16, max_running_rows=4)
    requests = [Request(n, tuple(range(n + 3, n + 43)), Sampling(max_new_tokens=5)) for n in range(6)]
    found = answers(engine, requests)
    stats = engine.stats()
    assert stats["prefill_tokens"] + stats["reused_tokens"] == 240
    assert stats["decode_tokens"] == sum(len(c.token_ids) for c in found.values()) == 30
    assert 0 < stats["page_fill"] <= 1 and stats["failed_rows"] == 0
    assert all(c.first_token_s <= c.total_s for c in found.values())
