"""Answers as rows of the completions table: token ids to text, logprobs to numbers, failures to errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.core import schemas
from pipeline.runners.build import Answerer
from pipeline.runners.completion_store import CompletionStore
from pipeline.runners.lines import NO_KEY, Lines
from pipeline.runners.settings import Settings
from pipeline.text.stopping import final_text

ROWS = 4096
LOST = "lost: the answer was made but is not in the store any more; run the same command again"


class CompletionRows:
    """Writes lines out in order. errors: by key. otherwise: the error of lines that have neither answer nor error."""

    def __init__(self, lines: Lines, settings: Settings, answerer: Answerer, errors: dict[bytes, str], otherwise: str | None) -> None:
        self._lines, self._settings, self._tokenizer = lines, settings, answerer.tokenizer
        self._stop_ids = frozenset(answerer.identity.stop_ids)
        self._errors, self._otherwise = errors, otherwise or LOST
        self.total = lines.table.num_rows
        self.failed = 0
        self.tokens = 0

    def tables(self, store: CompletionStore) -> Iterator[pa.Table]:
        """The whole table in batches, in order of ordinal and sample."""
        start = 0
        for batch in store.ordered(self._lines.keys, ROWS):
            end = batch["n"][-1].as_py() + 1
            yield self._rows(start, end, batch)
            start = end
        for begin in range(start, self._lines.table.num_rows, ROWS):
            yield self._rows(begin, min(begin + ROWS, self._lines.table.num_rows), None)

    def _rows(self, start: int, end: int, answers: pa.Table | None) -> pa.Table:
        lines = self._lines.table.slice(start, end - start).select(["ordinal", "sample", "setting", "key"]).to_pylist()
        found = {row["n"]: row for row in answers.to_pylist()} if answers is not None else {}
        rows = [self._row(line, found.get(start + i)) for i, line in enumerate(lines)]
        table = pa.Table.from_pylist(rows, schema=schemas.COMPLETIONS)
        self.failed += table.num_rows - table["error"].null_count
        self.tokens += pc.sum(table["completion_tokens"]).as_py() or 0
        return table

    def _row(self, line: dict[str, Any], answer: dict[str, Any] | None) -> dict[str, Any]:
        row = {"ordinal": line["ordinal"], "sample": line["sample"]}
        if answer is None:
            return row | {"finish_reason": "error", "completion_tokens": 0, "error": self._error(line)}
        ids, logprobs = answer["token_ids"], answer["token_logprobs"]
        text, detail = self._text(ids, answer["finish_reason"], answer["finish_detail"], line["setting"])
        return row | {
            "text": text, "token_ids": ids, "finish_reason": answer["finish_reason"], "finish_detail": detail,
            "completion_tokens": len(ids), "token_logprobs": logprobs, "top_logprobs": answer["top_logprobs"],
            "logprob_mean": sum(logprobs) / len(logprobs) if logprobs else None, "logprob_min": min(logprobs, default=None),
        }  # fmt: skip

    def _text(self, ids: list[int], reason: str, detail: str | None, setting: int) -> tuple[str, str | None]:
        by_token = bool(ids) and detail == f"token {ids[-1]}"
        stop_string = detail if reason == "stop" and not by_token else None
        stops = () if stop_string else self._settings.setting(setting).stop  # one may have been held back for a longer one
        text, found = final_text(self._tokenizer, ids, stop_string, stop_ids=self._stop_ids if by_token else (), stops=stops)
        return text, found if found in stops else detail or found

    def _error(self, line: dict[str, Any]) -> str:
        if line["key"] == NO_KEY:
            return self._lines.refused[line["ordinal"]]
        return self._errors.get(line["key"], self._otherwise)
