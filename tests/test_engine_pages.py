"""Page accounts: nothing lost, nothing shared by mistake, heads of prompts found by their tokens."""

import random

import pytest

from pipeline.engine.pages import PageAllocator


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("page_size", [4, 16, 32])
def test_no_page_is_lost_or_shared_by_mistake(seed, page_size):
    rng = random.Random(seed)
    allocator = PageAllocator(num_pages=16, page_size=page_size)
    written: dict[int, list[int]] = {}  # what a page of the real cache would hold
    rows: list[list[int]] = []
    for _ in range(200):
        if rng.random() < 0.6:
            tokens = [rng.randrange(2) for _ in range(rng.randrange(1, 4 * page_size))]
            match = allocator.match(tokens, len(tokens) - 1)
            for index, page in enumerate(match.pages):
                assert written[page] == tokens[index * page_size : (index + 1) * page_size]
                allocator.share(page)
            held = list(match.pages)
            if match.source is not None:
                assert written[match.source][: match.copied] == tokens[len(held) * page_size :][: match.copied]
                allocator.share(match.source)
            while len(held) * page_size < len(tokens) and (page := allocator.take()) is not None:
                written[page] = tokens[len(held) * page_size : (len(held) + 1) * page_size]
                held.append(page)
            if match.source is not None:
                allocator.release([match.source])
            if len(held) * page_size >= len(tokens):
                allocator.register(tokens, held, ready=rng.random() < 0.8)
            rows.append(held)
        elif rows:
            allocator.release(rows.pop(rng.randrange(len(rows))))
        allocator.check(rows)
    for held in rows:
        allocator.release(held)
    allocator.check([])
    assert allocator.available == 16


def test_equal_tokens_behind_different_heads_are_different():
    allocator = PageAllocator(num_pages=4, page_size=4)
    first = [allocator.take(), allocator.take()]
    allocator.register([1, 1, 1, 1, 9, 9, 9, 9], first, ready=True)
    assert allocator.match([1, 1, 1, 1, 9, 9, 9, 9, 5], 8).tokens == 8
    assert allocator.match([2, 2, 2, 2, 9, 9, 9, 9, 5], 8).tokens == 0
    assert allocator.match([9, 9, 9, 9, 5], 4).tokens == 0


def test_a_head_that_ends_inside_a_page_is_copied():
    allocator = PageAllocator(num_pages=4, page_size=64)
    page = allocator.take()
    allocator.register(list(range(60)), [page], ready=True)  # three whole blocks of 16
    match = allocator.match([*range(40), 7, 7, 7, 7, 7, 7, 7, 7, 7], 48)
    assert (match.tokens, match.pages, match.source, match.copied) == (32, (), page, 32)


def test_a_head_under_way_is_reported_and_forgotten_with_its_row():
    allocator = PageAllocator(num_pages=4, page_size=4)
    held = [allocator.take()]
    allocator.register([1, 2, 3, 4], held, ready=False)
    assert allocator.match([1, 2, 3, 4, 5], 4).pending
    allocator.release(held)
    assert not allocator.match([1, 2, 3, 4, 5], 4).pending
    assert allocator.available == 4


def test_the_oldest_cached_page_is_forgotten_first_and_tails_before_heads():
    allocator = PageAllocator(num_pages=3, page_size=2)
    held = [allocator.take(), allocator.take(), allocator.take()]
    allocator.register([1, 2, 3, 4, 5, 6], held, ready=True)
    allocator.release(held)
    assert allocator.take() == held[2]
    assert allocator.match([1, 2, 3, 4, 5, 6, 7], 6).tokens == 4


def test_cached_heads_can_be_forgotten_and_held_ones_stay():
    allocator = PageAllocator(num_pages=3, page_size=2)
    left, held = [allocator.take()], [allocator.take()]
    allocator.register([1, 2], left, ready=True)
    allocator.register([3, 4], held, ready=True)
    allocator.release(left)
    allocator.forget_cached()
    allocator.check([held])
    assert allocator.match([1, 2, 3], 2).tokens == 0
    assert allocator.match([3, 4, 5], 2).tokens == 2
    assert allocator.available == 2


def test_releasing_twice_is_a_bug():
    allocator = PageAllocator(num_pages=1, page_size=4)
    page = allocator.take()
    allocator.release([page])
    with pytest.raises(AssertionError, match="too often"):
        allocator.release([page])
