"""Which tokens of which rows the next step computes. Integers only: a plan goes out, a commit comes back.

A running row has pages and a number of computed tokens. Each step takes one token of every row that is decoding, then
fills the step's token budget with chunks of prompts: rows already begun first, then waiting ones in the order of the
admission policy. A row that finds no free page takes those of the row admitted last, which waits again and is
recomputed; as bits do not depend on how a token is computed, its answer stays the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from pipeline.engine.pages import PageAllocator
from pipeline.engine.request import Request


@dataclass(eq=False, slots=True)
class Sequence:
    """One row under way: its tokens so far, how many of them have keys and values, and where."""

    request: Request
    tokens: list[int]
    computed: int = 0
    pages: list[int] = field(default_factory=list)
    order: int = 0  # of admission
    waited: int = 0  # steps in the waiting room
    reused: int = 0  # prompt tokens taken from other rows' pages

    @property
    def prompt_tokens(self) -> int:
        return len(self.request.token_ids)

    @property
    def missing(self) -> int:
        """Tokens still without keys and values; 1 for a row that is decoding."""
        return len(self.tokens) - self.computed


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens start .. start + count of a sequence are computed in this step."""

    sequence: Sequence
    start: int
    count: int
    ends: bool  # the step yields this row's next token

    @classmethod
    def of(cls, sequence: Sequence, count: int) -> Chunk:
        """The next `count` tokens of a sequence."""
        return cls(sequence, sequence.computed, count, sequence.computed + count == len(sequence.tokens))


@dataclass(slots=True)
class Plan:
    """One step: page copies (source, target, tokens) first, then the chunks."""

    chunks: list[Chunk] = field(default_factory=list)
    copies: list[tuple[int, int, int]] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return sum(chunk.count for chunk in self.chunks)


Policy = Callable[[Sequence], tuple[int, ...]]  # the waiting row with the smallest value is admitted first

POLICIES: dict[str, Policy] = {
    "arrival": lambda sequence: (),
    "longest_first": lambda sequence: (-sequence.prompt_tokens - sequence.request.sampling.max_new_tokens,),
    "longest_answer_first": lambda sequence: (-sequence.request.sampling.max_new_tokens,),
    "shortest_first": lambda sequence: (sequence.prompt_tokens + sequence.request.sampling.max_new_tokens,),
}
PATIENCE_STEPS = 2000  # a row that waited longer goes first, whatever the policy says


class Scheduler:
    """Waiting and running rows over one page allocator."""

    def __init__(
        self, allocator: PageAllocator, max_running_rows: int, max_step_tokens: int, policy: str = "arrival", reuse_prefixes: bool = True
    ) -> None:  # fmt: skip
        self.allocator = allocator
        self.max_running_rows, self.max_step_tokens = max_running_rows, max_step_tokens
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.preemptions = 0
        self._policy, self._reuse = POLICIES[policy], reuse_prefixes
        self._in_order = policy == "arrival"
        self._admitted = 0
        self._sources: list[int] = []  # pages held until this step's copies are done

    def add(self, sequences: Iterable[Sequence]) -> None:
        """Rows enter the waiting room; the policy orders it anew."""
        self.waiting.extend(sequences)
        if not self._in_order:
            self.waiting = deque(sorted(self.waiting, key=lambda s: (s.waited < PATIENCE_STEPS, self._policy(s))))

    def pages_for(self, tokens: int) -> int:
        return -(-tokens // self.allocator.page_size)

    def plan(self) -> Plan:
        """The next step; empty only when nothing runs and nothing can be admitted."""
        plan = Plan()
        decoding = [s for s in self.running if s.missing == 1]
        begun = [s for s in self.running if s.missing > 1]
        for sequence in decoding:
            self._plan_chunk(plan, sequence, 1)
        budget = max(self.max_step_tokens - len(plan.chunks), 0)
        for sequence in begun:
            budget -= self._plan_chunk(plan, sequence, min(sequence.missing, budget))
        if not self._sources:
            self._admit(plan, budget)
        return plan

    def commit(self, plan: Plan) -> None:
        """The step succeeded: its tokens are computed, and whole blocks of prompts can be used by others."""
        for chunk in plan.chunks:
            sequence = chunk.sequence
            sequence.computed = chunk.start + chunk.count
            if self._reuse and chunk.start < sequence.prompt_tokens:
                done = min(sequence.computed, sequence.prompt_tokens)
                self.allocator.register(sequence.request.token_ids[:done], sequence.pages, ready=True)
        self._release_sources()

    def abandon(self) -> None:
        """The step failed: nothing of it counts. Rows admitted for it have computed nothing yet and wait again."""
        self._release_sources()
        for sequence in [s for s in self.running if s.computed <= s.reused]:
            self._to_waiting(sequence)

    def finish(self, sequence: Sequence) -> None:
        """The row has its answer, or has failed: its pages are free for others."""
        self.running.remove(sequence)
        self.allocator.release(sequence.pages)
        sequence.pages = []

    def preempt_down_to(self, rows: int) -> None:
        """Send the rows admitted last back to wait until at most `rows` run."""
        while len(self.running) > rows:
            self._preempt()

    def holders(self) -> list[list[int]]:
        """All page tables, for `PageAllocator.check`."""
        return [s.pages for s in self.running] + [[page] for page in self._sources]

    def _plan_chunk(self, plan: Plan, sequence: Sequence, count: int) -> int:
        """Add a chunk if its pages can be had, at the cost of rows admitted later; returns the tokens planned."""
        if count <= 0 or not sequence.pages:
            return 0  # no budget, or preempted a moment ago
        need = self.pages_for(sequence.computed + count)
        while len(sequence.pages) < need:
            page = self.allocator.take()
            if page is not None:
                sequence.pages.append(page)
                continue
            victim = self._preempt()
            plan.chunks = [chunk for chunk in plan.chunks if chunk.sequence is not victim]
            if victim is sequence:
                return 0
        plan.chunks.append(Chunk.of(sequence, count))
        return count

    def _admit(self, plan: Plan, budget: int) -> None:
        passed: list[Sequence] = []
        for sequence in self.waiting:
            sequence.waited += 1
        while self.waiting and budget > 0 and len(self.running) < self.max_running_rows:
            sequence = self.waiting.popleft()
            taken = self._start(plan, sequence, budget)
            if taken is None:
                self.waiting.appendleft(sequence)
                break
            if taken == 0:
                passed.append(sequence)  # its prompt's head is being computed: next step
            budget -= taken
        self.waiting.extendleft(reversed(passed))

    def _start(self, plan: Plan, sequence: Sequence, budget: int) -> int | None:
        """Admit one row: tokens planned, 0 to let it pass this time, None when there is no room."""
        match = self.allocator.match(sequence.request.token_ids, len(sequence.tokens) - 1) if self._reuse else None
        if match and match.pending and self._worth_waiting(sequence, match.tokens):
            return 0
        shared = list(match.pages) if match else []
        computed = match.tokens if match else 0
        count = min(len(sequence.tokens) - computed, budget)
        spare = 1 if self.running else 0  # rows under way will want a page soon
        new = self.pages_for(computed + count) - len(shared)
        held_back = sum(1 for page in shared if self.allocator.is_cached(page))
        copied_from_cache = match is not None and match.source is not None and self.allocator.is_cached(match.source)
        if new + spare + held_back + copied_from_cache > self.allocator.available:
            return None
        for page in shared:
            self.allocator.share(page)
        if match and match.source is not None:
            self.allocator.share(match.source)
            self._sources.append(match.source)
        fresh = [self.allocator.take() for _ in range(new)]
        sequence.pages = shared + [page for page in fresh if page is not None]
        assert len(sequence.pages) == len(shared) + new
        if match and match.source is not None:
            plan.copies.append((match.source, sequence.pages[len(shared)], match.copied))
        sequence.computed = sequence.reused = computed
        self._admitted += 1
        sequence.order = self._admitted
        self.running.append(sequence)
        plan.chunks.append(Chunk.of(sequence, count))
        if self._reuse:
            end = min(computed + count, sequence.prompt_tokens)
            self.allocator.register(sequence.request.token_ids[:end], sequence.pages, ready=False)
        return count

    def _worth_waiting(self, sequence: Sequence, known: int) -> bool:
        """Another row computes the next block of this prompt in this step; waiting saves it."""
        return bool(self.running) and sequence.prompt_tokens - known > self.allocator.block

    def _preempt(self) -> Sequence:
        victim = max(self.running, key=lambda s: s.order)
        self.preemptions += 1
        self._to_waiting(victim)
        return victim

    def _to_waiting(self, sequence: Sequence) -> None:
        self.finish(sequence)
        sequence.computed = sequence.reused = 0
        self.waiting.appendleft(sequence)

    def _release_sources(self) -> None:
        for page in self._sources:
            self.allocator.release([page])
        self._sources = []
