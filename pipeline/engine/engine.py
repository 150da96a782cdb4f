"""Requests in, completions out, as fast as the machine allows and the same in any company.

The loop: plan (scheduler) -> tensors (batch) -> logits (decoder) -> tokens (sampler) -> commit. Knows token ids only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from pipeline.core.errors import OutOfResources
from pipeline.engine.answer import Answer, refusal
from pipeline.engine.batch import Batch, build_batch
from pipeline.engine.pages import PageAllocator
from pipeline.engine.request import Completion, Request
from pipeline.engine.sampler import choose
from pipeline.engine.scheduler import Plan, Scheduler, Sequence
from pipeline.engine.stats import EngineStats
from pipeline.model.attention import Attention
from pipeline.model.config import ModelConfig
from pipeline.model.kernel_plan import make_attention, numerics, pack_linears
from pipeline.model.kv_cache import CacheShape
from pipeline.model.linear import MAX_ROWS

STALLED_STEPS = 100  # steps in a row without one computed token: a bug, told instead of an endless night
LOOKAHEAD_ROWS = 1024  # waiting rows taken from the caller, for the admission policy to choose from
AUTO_RUNNING_ROWS = 64
AUTO_KV_BYTES = 2 * 1024**3


class Model(Protocol):
    """What the engine needs of a decoder."""

    config: ModelConfig
    usable_vocab: int

    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def device(self) -> torch.device: ...
    def __call__(self, token_ids: Tensor, positions: Tensor, attention: Attention, logits_at: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class EngineSettings:
    """Speed and memory. None of these changes an answer."""

    max_running_rows: int | None = None  # None: chosen by the engine
    page_size: int = 256  # tokens
    kv_bytes: int | None = None  # None: chosen by the engine
    max_step_tokens: int = 1024  # tokens of one step, decoding rows included
    policy: str = "arrival"
    reuse_prefixes: bool = True
    check: bool = False  # test the page accounts after every step


@dataclass(eq=False, slots=True)
class _Row:
    """A sequence with its answer and its times."""

    sequence: Sequence
    answer: Answer
    taken_s: float
    first_token_s: float | None = None


class Engine:
    """One model, many requests. `generate` may be called again; prompts' heads stay known between calls."""

    def __init__(self, decoder: Model, settings: EngineSettings | None = None, stop_ids: Iterable[int] = ()) -> None:
        self.settings = settings or EngineSettings()
        self.decoder, self._stop_ids = decoder, frozenset(stop_ids)
        config = decoder.config
        self._rows_limit = self.settings.max_running_rows or AUTO_RUNNING_ROWS
        shape = CacheShape(config.layers, config.kv_heads, config.head_dim, self._page_count(), self.settings.page_size)
        self._attention = make_attention(shape, decoder.dtype, decoder.device)
        self._pages = PageAllocator(shape.pages, shape.page_size)
        # larger steps gain nothing on CPU: the products are full, and activations leave the cache
        step = min(self.settings.max_step_tokens, MAX_ROWS) if decoder.device.type == "cpu" else self.settings.max_step_tokens
        self._scheduler = Scheduler(
            self._pages, self._rows_limit, step, self.settings.policy, self.settings.reuse_prefixes)  # fmt: skip
        self._rows: dict[Sequence, _Row] = {}
        self._stats = EngineStats(max_running_rows=self._rows_limit)
        self.numerics = numerics(self._attention.numerics, pack_linears(decoder), decoder.device)

    def stats(self) -> dict[str, Any]:
        """Telemetry since the engine was made; see EngineStats."""
        self._stats.preemptions = self._scheduler.preemptions
        self._stats.max_running_rows = self._scheduler.max_running_rows
        return self._stats.as_dict()

    def under_way(self) -> list[Completion]:
        """Unfinished answers with what is drawn of them so far; a Request may go on from one (`begun`)."""
        return [row.answer.completion() for row in self._rows.values() if row.answer.token_ids]

    def forget_prompts(self) -> None:
        """Between calls of `generate`: heads of earlier prompts are computed anew where they come again."""
        self._pages.forget_cached()

    @torch.inference_mode()
    def generate(self, requests: Iterable[Request], stop: Callable[[], bool] | None = None) -> Iterator[Completion]:
        """Answer every request exactly once, in order of completion. Requests are taken as rows finish.

        A row that cannot be answered comes back with finish_reason "error"; it never ends the others.
        stop: asked before every step; once it says yes, rows under way are let go without an answer.
        """
        source = iter(requests)
        started, idle, open_source = time.perf_counter(), 0, True
        try:
            while stop is None or not stop():
                while open_source and len(self._scheduler.waiting) < LOOKAHEAD_ROWS // 2:
                    taken, refused, open_source = self._take(source)
                    yield from refused
                    self._scheduler.add(taken)
                if not self._rows:
                    return
                finished, progress = self._step()
                yield from finished
                idle = 0 if progress else idle + 1
                if idle > STALLED_STEPS:
                    raise OutOfResources(f"no token was computed in {idle} steps with {len(self._rows)} rows under way; "
                                         "this is a bug of the scheduler, please report it with the manifest")  # fmt: skip
                self._stats.sample(time.perf_counter() - started, len(self._scheduler.running), len(self._scheduler.waiting))
        finally:
            self._drop_all()

    def _take(self, source: Iterator[Request]) -> tuple[list[Sequence], list[Completion], bool]:
        """Fill the waiting room from the caller."""
        taken: list[Sequence] = []
        refused: list[Completion] = []
        while len(self._scheduler.waiting) + len(taken) < LOOKAHEAD_ROWS:
            request = next(source, None)
            if request is None:
                return taken, refused, False
            error = refusal(request, self.decoder.config.vocab_size, self.decoder.config.max_model_len) or self._too_large(request)
            if error:
                self._stats.failed_rows += 1
                refused.append(Completion(request.id, request.sample, (), (), "error", error=error))
                continue
            answer = Answer(request, self._stop_ids, self.decoder.config.max_model_len)
            sequence = Sequence(request, [*request.token_ids, *answer.token_ids])
            self._rows[sequence] = _Row(sequence, answer, time.perf_counter())
            taken.append(sequence)
        return taken, refused, True

    def _step(self) -> tuple[list[Completion], bool]:
        """One plan carried out: the rows it finished, and whether anything was computed."""
        begun = time.perf_counter()
        plan = self._scheduler.plan()
        if not plan.chunks:
            return [], False
        try:
            batch = build_batch(plan, self.settings.page_size, self.decoder.device)
            computing = time.perf_counter()
            logits = self._forward(plan, batch)
            choices = choose(logits, [self._rows[c.sequence].answer.draw() for c in batch.sampled], self.decoder.usable_vocab)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            self._scheduler.abandon()
            return self._back_off(), True
        computed = time.perf_counter()
        self._scheduler.commit(plan)
        self._account_pages()
        finished = [row for chunk, choice in zip(batch.sampled, choices) if (row := self._rows[chunk.sequence]) and self._push(row, choice)]
        done = [self._finish(row) for row in finished]
        self._stats.step(plan, len(batch.token_ids), computed - computing, time.perf_counter() - computed + computing - begun)
        if self.settings.check:
            self._pages.check(self._scheduler.holders())
        return done, True

    def _forward(self, plan: Plan, batch: Batch) -> Tensor:
        for source, target, tokens in plan.copies:
            self._attention.copy(source, target, tokens)
        self._attention.begin(batch.ragged)
        return self.decoder(batch.token_ids, batch.positions, self._attention, batch.logits_at)

    def _push(self, row: _Row, choice: Any) -> bool:
        """Give a row its next token; True when that ended it."""
        if row.first_token_s is None:
            row.first_token_s = time.perf_counter() - row.taken_s
            self._stats.reused_tokens += row.sequence.reused
        row.answer.push(choice)
        if row.answer.finish_reason is None:
            row.sequence.tokens.append(row.answer.token_ids[-1])
        return row.answer.finish_reason is not None

    def _finish(self, row: _Row) -> Completion:
        self._scheduler.finish(row.sequence)
        del self._rows[row.sequence]
        self._stats.failed_rows += row.answer.error is not None
        return row.answer.completion(row.first_token_s, time.perf_counter() - row.taken_s)

    def _back_off(self) -> list[Completion]:
        """Memory ran out: run half as many rows; a row that does not fit alone fails by name."""
        self._stats.back_offs += 1
        running = len(self._scheduler.running)
        if running > 1 or self._scheduler.max_running_rows > 1:
            limit = max(1, min(self._scheduler.max_running_rows, max(running, 1)) // 2)
            self._scheduler.max_running_rows = limit
            self._scheduler.preempt_down_to(limit)
            return []
        sequence = self._scheduler.running[0] if self._scheduler.running else self._scheduler.waiting.popleft()
        row = self._rows[sequence]
        row.answer.fail("out_of_memory: the row does not fit into memory even alone; shorten it or lower generate.max_new_tokens")
        if sequence in self._scheduler.running:
            return [self._finish(row)]
        del self._rows[sequence]
        self._stats.failed_rows += 1
        return [row.answer.completion()]

    def _too_large(self, request: Request) -> str | None:
        tokens = min(len(request.token_ids) + request.sampling.max_new_tokens, self.decoder.config.max_model_len)
        room = self._pages.num_pages * self._pages.page_size
        if self._scheduler.pages_for(tokens) <= self._pages.num_pages:
            return None
        return (f"kv_memory_too_small: the row may grow to {tokens} tokens, generate.kv_memory has room for {room}; "
                "raise it or lower generate.max_new_tokens")  # fmt: skip

    def _page_count(self) -> int:
        config, size = self.decoder.config, self.settings.page_size
        slot_bytes = 2 * config.layers * config.kv_heads * config.head_dim * self.decoder.dtype.itemsize
        if self.settings.kv_bytes is not None:
            return max(1, self.settings.kv_bytes // (slot_bytes * size))
        whole_row = -(-config.max_model_len // size)
        return max(whole_row, min(2 * self._rows_limit * whole_row, AUTO_KV_BYTES // (slot_bytes * size)))

    def _account_pages(self) -> None:
        size = self._pages.page_size
        filled: dict[int, int] = {}  # page: its slots with tokens; a shared page counts once
        for sequence in self._scheduler.running:
            for index, page in enumerate(sequence.pages):
                filled[page] = max(filled.get(page, 0), min(sequence.computed - index * size, size))
        self._stats.pages(sum(filled.values()), len(filled), size)

    def _drop_all(self) -> None:
        """The caller has stopped early, or all is done: no row keeps a page."""
        for sequence in list(self._scheduler.running):
            self._scheduler.finish(sequence)
        self._scheduler.waiting.clear()
        self._rows.clear()


def is_out_of_memory(error: BaseException) -> bool:
    """Memory ran out, on any device; torch has no single error for it."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "not enough memory" in str(error) or "can't allocate" in str(error)
