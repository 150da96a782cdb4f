"""Pages of the KV cache as integers: who holds which page, and which pages already hold the head of a prompt.

A page has `page_size` slots, one per token. It is free, held (reference count of at least 1), or cached: nobody holds
it, but its tokens are indexed and it can be held again until a new page is needed. No tensors here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

BLOCK = 16  # tokens; the grain at which heads of prompts are recognised inside pages


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """The longest known head of a prompt. `pages` are shared whole; `copied` tokens of `source` are to be copied."""

    tokens: int
    pages: tuple[int, ...] = ()
    source: int | None = None
    copied: int = 0
    pending: bool = False  # a longer head is being computed by another row in this very step


@dataclass(slots=True)
class _Block:
    """One indexed block of prompt tokens: its own number names the whole head that it ends."""

    number: int
    page: int
    ready: bool


class PageAllocator:
    """Reference counts over `num_pages` pages, with an index of prompt heads by tokens.

    The index is a tree: a block is found by the number of its parent block and its own tokens, so the dict compares
    hash and tokens, and two different heads can never be taken for each other.
    """

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.num_pages, self.page_size = num_pages, page_size
        self.block = BLOCK if page_size % BLOCK == 0 else page_size
        self._free = list(range(num_pages - 1, -1, -1))  # low pages first: untouched memory stays untouched
        self._references = [0] * num_pages
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._index: dict[tuple[int, tuple[int, ...]], _Block] = {}
        self._keys: dict[int, list[tuple[int, tuple[int, ...]]]] = {}  # page: its keys in the index
        self._next_number = 1

    @property
    def available(self) -> int:
        """Pages that `take` can still give."""
        return len(self._free) + len(self._cached)

    @property
    def held(self) -> int:
        """Pages that some row holds."""
        return self.num_pages - self.available

    def take(self) -> int | None:
        """A page with one reference, None when all are held. Forgets the oldest cached page if need be."""
        if self._free:
            page = self._free.pop()
        elif self._cached:
            page, _ = self._cached.popitem(last=False)
            self._forget(page)
        else:
            return None
        self._references[page] = 1
        return page

    def is_cached(self, page: int) -> bool:
        """Nobody holds it, so holding it makes one page less available."""
        return page in self._cached

    def share(self, page: int) -> None:
        """One more holder of a held or cached page."""
        if self._references[page] == 0:
            del self._cached[page]
        self._references[page] += 1

    def release(self, pages: Sequence[int]) -> None:
        """Give back one reference of each. The tail goes first, so that heads of prompts are forgotten last."""
        for page in reversed(pages):
            assert self._references[page] > 0, f"page {page} released too often"
            self._references[page] -= 1
            if self._references[page]:
                continue
            self._drop_unready(page)
            if page in self._keys:
                self._cached[page] = None
            else:
                self._free.append(page)

    def forget_cached(self) -> None:
        """Pages that nobody holds are free, and what they hold is not indexed any more."""
        for page in self._cached:
            self._forget(page)
        self._free += self._cached
        self._cached.clear()

    def match(self, tokens: Sequence[int], limit: int) -> PrefixMatch:
        """The longest indexed head of `tokens` with at most `limit` tokens. Takes no reference."""
        parent, pages, end, pending = 0, [], 0, False
        while end + self.block <= limit:
            found = self._index.get((parent, tuple(tokens[end : end + self.block])))
            if found is None:
                break
            if not found.ready:
                pending = True
                break
            end += self.block
            parent = found.number
            if end % self.page_size == self.block % self.page_size:
                pages.append(found.page)
            else:
                pages[-1] = found.page  # a page that was copied and went on differently: the longest one counts
        whole, copied = divmod(end, self.page_size)
        return PrefixMatch(end, tuple(pages[:whole]), pages[whole] if copied else None, copied, pending)

    def register(self, tokens: Sequence[int], pages: Sequence[int], ready: bool) -> None:
        """Index the whole blocks of a prompt's `tokens` that lie in `pages`; `ready` once they are computed."""
        parent = 0
        for start in range(0, len(tokens) - self.block + 1, self.block):
            key = (parent, tuple(tokens[start : start + self.block]))
            found = self._index.get(key)
            page = pages[start // self.page_size]
            if found is None:
                found = self._index[key] = _Block(self._next_number, page, ready)
                self._next_number += 1
                self._keys.setdefault(page, []).append(key)
            elif found.page == page:
                found.ready = found.ready or ready
            parent = found.number

    def check(self, holders: Sequence[Sequence[int]] | None = None) -> None:
        """State what must always hold: free + held + cached = all, and counts equal the page tables of `holders`."""
        free, cached = set(self._free), set(self._cached)
        held = {page for page, count in enumerate(self._references) if count}
        assert len(free) == len(self._free), "a page is free twice"
        assert not free & cached and not free & held and not cached & held, "a page is in two states"
        assert len(free) + len(cached) + len(held) == self.num_pages, "a page is lost"
        assert all(count >= 0 for count in self._references)
        assert cached <= set(self._keys) and not free & set(self._keys), "the index disagrees with the states"
        assert sum(map(len, self._keys.values())) == len(self._index)
        if holders is not None:
            counts = [0] * self.num_pages
            for table in holders:
                for page in table:
                    counts[page] += 1
            assert counts == self._references, "reference counts disagree with the page tables"

    def _forget(self, page: int) -> None:
        for key in self._keys.pop(page, ()):
            del self._index[key]

    def _drop_unready(self, page: int) -> None:
        """A row left before its head was computed: nobody will ever finish these blocks."""
        keys = self._keys.get(page, [])
        kept = [key for key in keys if self._index[key].ready]
        for key in keys:
            if not self._index[key].ready:
                del self._index[key]
        if kept:
            self._keys[page] = kept
        else:
            self._keys.pop(page, None)
