"""Engines that `pipeline bench` measures: this one in several ways, and peers that a user may have installed.

Each is loaded once in a process of its own and answers a workload from prompt texts to texts, greedily. A peer is a thing to
measure, never a dependency.
"""

from __future__ import annotations

import importlib.util
import json
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipeline.core.errors import PipelineError, UsageError
from pipeline.core.params import ModelParams
from pipeline.engine import reference
from pipeline.engine.engine import Engine
from pipeline.engine.request import Completion, Request, Sampling
from pipeline.model.config import read_config
from pipeline.model.device import TORCH_DTYPES, pick_device
from pipeline.model.weights import load_decoder
from pipeline.text.tokenizer import Tokenizer

PEER_BATCH_ROWS = 32
STATIC_ROWS = 64
PEER_CACHE_GIB = 3


@dataclass(frozen=True)
class Workload:
    """Prompt texts and the most tokens of each answer; ignore_eos: answers run on to it, so that all do the same work."""

    prompts: list[str]
    new_tokens: list[int]
    ignore_eos: bool = True


@dataclass(frozen=True)
class Setup:
    """What a contender is loaded from. converted: the model folder in the peer's own format, where it needs one."""

    folder: Path
    params: ModelParams
    stop_ids: tuple[int, ...]
    converted: Path | None = None

    @property
    def dtype(self) -> str:
        return (read_config(self.folder).dtype or "float32") if self.params.dtype == "auto" else self.params.dtype


Answers = list[list[int]]  # token ids per row
Answer = Callable[[Workload], tuple[Answers, dict[str, Any]]]  # with what else is known of the run


def this_engine(setup: Setup) -> Answer:
    """All rows given to the engine at once."""
    return _ours(setup, lambda engine, requests: list(engine.generate(requests)))


def static_batches(setup: Setup) -> Answer:
    """This engine fed 64 rows at a time: the next ones wait for the longest answer of these."""

    def in_batches(engine: Engine, requests: list[Request]) -> list[Completion]:
        parts = [requests[first : first + STATIC_ROWS] for first in range(0, len(requests), STATIC_ROWS)]
        return [completion for part in parts for completion in engine.generate(part)]

    return _ours(setup, in_batches)


def without_cache(setup: Setup) -> Answer:
    """The oracle: one row at a time, the whole sequence computed anew for each token."""
    return _ours(setup, lambda engine, requests: [reference.generate(engine.decoder, r, setup.stop_ids) for r in requests])


def _ours(setup: Setup, run: Callable[[Engine, list[Request]], list[Completion]]) -> Answer:
    tokenizer, engine = Tokenizer.load(setup.folder), Engine(load_decoder(setup.folder, setup.params), stop_ids=setup.stop_ids)

    def answer(work: Workload) -> tuple[Answers, dict[str, Any]]:
        before = engine.stats()
        requests = [
            Request(number, tuple(ids), Sampling(max_new_tokens=count, ignore_eos=work.ignore_eos))
            for number, (ids, count) in enumerate(zip(tokenizer.encode_scaffold(work.prompts), work.new_tokens))
        ]
        done = sorted(run(engine, requests), key=lambda completion: completion.id)
        failed = next((completion.error for completion in done if completion.error), None)
        if failed:
            raise UsageError(f"the workload does not fit this model ({failed}); fewer --new-tokens, or a model with a longer context")
        tokens = [list(completion.token_ids) for completion in done]
        [tokenizer.decode(ids) for ids in tokens]
        after = engine.stats()
        waits = sorted(c.first_token_s for c in done if c.first_token_s is not None)
        return tokens, {
            "first_token_s": waits[len(waits) // 2] if waits else None, "page_fill": after["page_fill"],
            "prompt_tokens": sum(len(request.token_ids) for request in requests),
            "prefill_s": after["prefill_s"] - before["prefill_s"], "decode_s": after["decode_s"] - before["decode_s"],
        }  # fmt: skip

    return answer


def transformers_generate(setup: Setup) -> Answer:
    """Hugging Face `generate`, rows sorted by length, batches of 32, left-padded; a batch runs to its longest answer."""
    tokenizer, model = _transformers(setup)

    @torch.inference_mode()
    def answer(work: Workload) -> tuple[Answers, dict[str, Any]]:
        order = sorted(range(len(work.prompts)), key=lambda number: len(work.prompts[number]))
        found: Answers = [[] for _ in order]
        for first in range(0, len(order), PEER_BATCH_ROWS):
            rows = order[first : first + PEER_BATCH_ROWS]
            texts = [work.prompts[row] for row in rows]
            batch = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False).to(model.device)
            ends = {"eos_token_id": None, "pad_token_id": tokenizer.pad_token_id} if work.ignore_eos else {}
            out = model.generate(**batch, max_new_tokens=max(work.new_tokens[row] for row in rows), do_sample=False, **ends)
            answers = out[:, batch["input_ids"].shape[1] :]
            tokenizer.batch_decode(answers)
            for row, ids in zip(rows, answers.tolist()):
                found[row] = _until_end(ids, work, row, setup.stop_ids)
        return found, {}

    return answer


def transformers_continuous(setup: Setup) -> Answer:
    """Hugging Face `generate_batch`; it knows one limit for all answers, so shorter ones are cut afterwards."""
    from transformers import GenerationConfig

    make_limits: Any = GenerationConfig
    tokenizer, model = _transformers(setup)

    def answer(work: Workload) -> tuple[Answers, dict[str, Any]]:
        ends = -1 if work.ignore_eos else tokenizer.eos_token_id
        longest, padding = max(work.new_tokens), tokenizer.pad_token_id
        limits = make_limits(max_new_tokens=longest, do_sample=False, eos_token_id=ends, pad_token_id=padding)
        ids = tokenizer(work.prompts, add_special_tokens=False)["input_ids"]
        out = model.generate_batch(inputs=ids, generation_config=limits, progress_bar=False)
        rows = sorted(out.values(), key=lambda one: int(str(one.request_id).rsplit("_", 1)[-1]))
        tokens = [_until_end(one.generated_tokens, work, row, setup.stop_ids) for row, one in enumerate(rows)]
        tokenizer.batch_decode(tokens)
        return tokens, {}

    return answer


def _transformers(setup: Setup) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(setup.folder, padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model: Any = AutoModelForCausalLM.from_pretrained(setup.folder, dtype=TORCH_DTYPES[setup.dtype])
    model.train(False)
    return tokenizer, model.to(pick_device(setup.params.device))


def openvino_batching(setup: Setup) -> Answer:
    """OpenVINO GenAI's continuous batching with its prefix cache, 64 rows at once."""
    tensor, genai = importlib.import_module("openvino").Tensor, importlib.import_module("openvino_genai")
    tokenizer, scheduler = Tokenizer.load(setup.folder), genai.SchedulerConfig()
    scheduler.max_num_seqs, scheduler.max_num_batched_tokens = STATIC_ROWS, 4096
    scheduler.cache_size, scheduler.enable_prefix_caching = PEER_CACHE_GIB, True
    precision = {"bfloat16": "bf16", "float32": "f32"}.get(setup.dtype, "f32")
    properties = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "INFERENCE_PRECISION_HINT": precision}
    if precision == "f32":
        properties["KV_CACHE_PRECISION"] = "f32"
    engine = genai.ContinuousBatchingPipeline(str(setup.converted), scheduler, "CPU", properties)

    def answer(work: Workload) -> tuple[Answers, dict[str, Any]]:
        prompts = [tensor(np.array([ids], np.int64)) for ids in tokenizer.encode_scaffold(work.prompts)]
        limits = []
        for count in work.new_tokens:
            limit = genai.GenerationConfig()
            limit.max_new_tokens, limit.do_sample, limit.apply_chat_template = count, False, False
            limit.ignore_eos, limit.stop_token_ids = work.ignore_eos, set() if work.ignore_eos else set(setup.stop_ids)
            limits.append(limit)
        out = engine.generate(prompts, limits)
        tokens = [_until_end(one.m_generation_ids[0], work, row, setup.stop_ids) for row, one in enumerate(out)]
        [tokenizer.decode(ids) for ids in tokens]
        return tokens, {}

    return answer


def _until_end(ids: Sequence[int], work: Workload, row: int, stop_ids: tuple[int, ...]) -> list[int]:
    """An answer without what a peer appended to it: cut at its own limit, and after its end token."""
    ids = list(ids)[: work.new_tokens[row]]
    end = next((at for at, token in enumerate(ids) if token in stop_ids), None)
    return ids if work.ignore_eos or end is None else ids[: end + 1]


THIS = "this engine"
CONTENDERS: dict[str, tuple[Callable[[Setup], Answer], str | None]] = {  # with the package it needs
    THIS: (this_engine, None),
    "static": (static_batches, None),
    "no-cache": (without_cache, None),
    "transformers": (transformers_generate, "transformers"),
    "transformers-continuous": (transformers_continuous, "transformers"),
    "openvino": (openvino_batching, "openvino_genai"),
}


def check_installed(name: str, converted: Path | None) -> None:
    """Raises UsageError naming what is missing for a contender."""
    package = CONTENDERS[name][1]
    if package is not None and importlib.util.find_spec(package) is None:
        raise UsageError(
            f"--beside {name}: the package {package} is not installed here; pip install {package.replace('_', '-')}, or leave it out"
        )
    if name == "openvino" and (converted is None or not (converted / "openvino_model.xml").is_file()):
        raise UsageError(
            "--beside openvino: --openvino-model must name a folder with openvino_model.xml; make one, in an environment with "
            "optimum-intel, by: optimum-cli export openvino -m CHECKPOINT --task text-generation-with-past --weight-format fp16 FOLDER"
        )


class Contender:
    """One engine in its own process; `measure` may be called again. Close it to end the process."""

    def __init__(self, name: str, setup: Setup) -> None:
        self.name = name
        context = get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, name, setup), daemon=True)
        self._process.start()
        theirs.close()
        self.load_s = float(self._receive()["load_s"])

    def measure(self, work: Workload) -> dict[str, Any]:
        """Seconds, answers, memory of one run over a workload."""
        self._connection.send(work)
        return self._receive() | {"who": self.name, "load_s": self.load_s}

    def close(self) -> None:
        self._connection.close()
        self._process.join(timeout=30)

    def _receive(self) -> dict[str, Any]:
        try:
            said: dict[str, Any] | str = self._connection.recv()
        except EOFError:
            raise UsageError(f"{self.name}: its process ended; its own words are above") from None
        if isinstance(said, str):
            raise UsageError(f"{self.name}: {said}")
        return said


def _serve(connection: Connection, name: str, setup: Setup) -> None:
    """The contender's process: load, then answer workloads until the other side closes."""
    start = time.perf_counter()
    try:
        answer = CONTENDERS[name][0](setup)
        connection.send({"load_s": time.perf_counter() - start})
        while True:
            work = connection.recv()
            start, busy = time.perf_counter(), time.process_time()
            tokens, more = answer(work)
            seconds, busy = time.perf_counter() - start, time.process_time() - busy
            made = sum(map(len, tokens))
            connection.send(more | {
                "seconds": seconds, "cpu_s": busy, "tokens": tokens, "new_tokens": made, "new_tokens_per_s": made / seconds,
                "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            })  # fmt: skip
    except EOFError:
        return
    except PipelineError as error:
        connection.send(str(error))


def read_workload(file: Path) -> Workload:
    """JSONL with "text" and "max_new_tokens", "ignore_eos" the same in all lines. Raises UsageError."""
    rows = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        try:
            row = json.loads(line)
            rows.append((str(row["text"]), int(row["max_new_tokens"]), bool(row.get("ignore_eos", True))))
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(f'{file}:{number}: a line is {{"text": ..., "max_new_tokens": ..., "ignore_eos": ...}}; {error!r}') from None
    if not rows or len({ignore for _, _, ignore in rows}) > 1:
        raise UsageError(f"{file}: one line or more, with the same ignore_eos in all")
    return Workload([text for text, _, _ in rows], [count for _, count, _ in rows], rows[0][2])
