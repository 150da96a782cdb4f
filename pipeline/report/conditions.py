"""What was known of a row before it was answered, as conditions for pattern mining: one inverted index, filled row by row.

Fields of meta (lists count once per item; numbers of many values by quarters), file, length, language, cleaning steps that
fired, whether there is a reference, terms of the text. Fields with too many values and rare terms are forgotten on the way,
so memory stays bounded by what can be significant.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from itertools import pairwise
from typing import Any

import numpy as np

from pipeline.report.patterns import MIN_ROWS, Condition
from pipeline.report.rows import Row
from pipeline.report.terms import telling

MAX_VALUES = 60
MAX_VALUE_CHARS = 80
PRUNE_EVERY = 20_000
RARE_SHARE = 0.002


class Conditions:
    """Add each row once, in order; then `index()`."""

    def __init__(self) -> None:
        self.rows = 0
        self._index: dict[Condition, array[int]] = defaultdict(lambda: array("i"))
        self._values: dict[str, dict[str, array[int]]] = defaultdict(lambda: defaultdict(lambda: array("i")))
        self._numbers: dict[tuple[str, str], tuple[array[int], array[float]]] = defaultdict(lambda: (array("i"), array("d")))
        self._too_many: set[str] = set()
        self._terms: dict[str, array[int]] = defaultdict(lambda: array("i"))

    def add(self, row: Row) -> None:
        number, self.rows = self.rows, self.rows + 1
        facts = [
            Condition("source", "source_file", row.source_file), Condition("language", "language", row.language),
            Condition("references", "references", "none" if not row.references else "one" if len(row.references) == 1 else "several"),
            *(Condition("step", "step", step) for step in row.steps),
        ]  # fmt: skip
        if row.bucket is not None:
            facts.append(Condition("bucket", "prompt_tokens", f"≤ {row.bucket:,}"))
        if row.truncated_tokens:
            facts.append(Condition("prompt", "prompt", "truncated"))
        for fact in facts:
            self._index[fact].append(number)
        self._number(number, "length", "characters", float(len(row.text)))
        for name, value in row.meta.items():
            self._field(number, name, value)
        for term in set(telling(row.text)):
            self._terms[term].append(number)
        if self.rows % PRUNE_EVERY == 0:
            floor = max(2, int(RARE_SHARE * self.rows))
            for term in [term for term, members in self._terms.items() if len(members) < floor]:
                del self._terms[term]

    def index(self, max_terms: int = 400) -> dict[Condition, np.ndarray]:
        """Rows per condition, rising. Of the terms the most frequent stay, whatever failed."""
        found = {condition: np.frombuffer(members, np.int32) for condition, members in self._index.items()}
        for name, values in self._values.items():
            for value, members in values.items():
                found[Condition("field", name, value)] = np.frombuffer(members, np.int32)
        for (kind, name), (members, numbers) in self._numbers.items():
            found.update(_quarters(kind, name, np.frombuffer(members, np.int32), np.frombuffer(numbers, np.float64)))
        usual = [(term, members) for term, members in self._terms.items() if len(members) >= max(MIN_ROWS, RARE_SHARE * self.rows)]
        usual.sort(key=lambda item: (-len(item[1]), item[0]))
        found.update({Condition("term", "term", term): np.frombuffer(members, np.int32) for term, members in usual[:max_terms]})
        return found

    def _field(self, number: int, name: str, value: Any) -> None:
        if isinstance(value, list):
            for item in sorted({item for item in value if isinstance(item, str)}):
                self._value(number, name, item)
        elif isinstance(value, bool) or value is None or isinstance(value, str):
            self._value(number, name, {None: "none", True: "true", False: "false"}.get(value, value))  # type: ignore[arg-type,call-overload]
        elif isinstance(value, int | float):
            self._number(number, "field", name, float(value))
            self._value(number, name, f"{value:g}")

    def _value(self, number: int, name: str, value: str) -> None:
        if name in self._too_many or len(value) > MAX_VALUE_CHARS:
            return
        self._values[name][value].append(number)
        if len(self._values[name]) > MAX_VALUES:
            self._too_many.add(name)
            del self._values[name]

    def _number(self, number: int, kind: str, name: str, value: float) -> None:
        rows, numbers = self._numbers[kind, name]
        rows.append(number)
        numbers.append(value)


def _quarters(kind: str, name: str, rows: np.ndarray, values: np.ndarray) -> dict[Condition, np.ndarray]:
    """Four ranges between the quartiles of a number of many values; none for a number of few."""
    if len(np.unique(values)) <= 8:
        return {}
    edges = np.unique(np.quantile(values, [0.25, 0.5, 0.75], method="higher"))
    place = np.searchsorted(edges, values, side="left")
    texts = [f"≤ {edges[0]:g}", *(f"{a:g} – {b:g}" for a, b in pairwise(edges)), f"> {edges[-1]:g}"]
    return {Condition(kind, name, text): rows[place == i] for i, text in enumerate(texts) if (place == i).any()}
