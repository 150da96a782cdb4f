"""The answers a run wants: one line per prompt and sample, with the key that names the answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.runners.answer_key import KEY_SCHEMA, answer_key, key_table, prompt_digest
from pipeline.runners.settings import RowError, Settings
from pipeline.tables.query import connect

NO_KEY = bytes(32)  # lines that cannot be asked; `Lines.refused` says why
LINES_SCHEMA = pa.schema([("ordinal", pa.int64()), ("sample", pa.int32()), ("position", pa.int64()), ("setting", pa.int32()), *KEY_SCHEMA])


@dataclass
class Lines:
    """Sorted by ordinal and sample. refused: ordinal -> error of rows whose overrides make no sense."""

    table: pa.Table
    refused: dict[int, str] = field(default_factory=dict)

    @property
    def keys(self) -> pa.Table:
        return self.table.select(KEY_SCHEMA.names)


def plan_lines(prompts: Iterable[pa.Table], settings: Settings) -> Lines:
    """Work out every key. prompts: columns ordinal, position, token_ids, overrides, by rising ordinal."""
    tables: list[pa.Table] = [LINES_SCHEMA.empty_table()]
    refused: dict[int, str] = {}
    for batch in prompts:
        if batch.num_rows:
            tables.append(_batch_lines(batch, settings, refused))
    return Lines(pa.concat_tables(tables).combine_chunks(), refused)


def _batch_lines(batch: pa.Table, settings: Settings, refused: dict[int, str]) -> pa.Table:
    offsets, values = _flat(batch["token_ids"])
    heads: list[tuple[int, int, int, int]] = []
    keys: list[bytes] = []
    prompts: list[bytes] = []
    rows = zip(batch["ordinal"].to_pylist(), batch["position"].to_pylist(), batch["overrides"].to_pylist())
    for index, (ordinal, position, overrides) in enumerate(rows):
        token_ids = values[offsets[index] : offsets[index + 1]]
        prompt = prompt_digest(token_ids)
        try:
            number = settings.number(overrides or "{}", len(token_ids))
        except RowError as error:
            refused[ordinal] = str(error)
            heads.append((ordinal, 0, position, -1))
            keys.append(NO_KEY)
            prompts.append(prompt)
            continue
        for sample in range(settings.samples(number)):
            heads.append((ordinal, sample, position, number))
            keys.append(answer_key(settings.digest(number), prompt, sample))
            prompts.append(prompt)
    columns = [pa.array(column, field.type) for column, field in zip(zip(*heads), LINES_SCHEMA)]
    return pa.Table.from_arrays([*columns, *key_table(keys, prompts).columns], schema=LINES_SCHEMA)


def missing_lines(lines: Lines, known: np.ndarray) -> pa.Table:
    """Lines to generate: of equal keys the one that comes first; sorted by position and sample. known: bool per line."""
    wanted = ~known & pc.not_equal(lines.table["key"], pa.scalar(NO_KEY, pa.binary(32))).to_numpy()
    with connect() as con:
        con.register("lines", lines.table.filter(pa.array(wanted)))
        table: pa.Table = con.sql(
            "SELECT * EXCLUDE nth FROM (SELECT *, row_number() OVER (PARTITION BY hi, lo ORDER BY position, sample) AS nth FROM lines) "
            "WHERE nth = 1 ORDER BY position, sample"
        ).to_arrow_table()
    return table.cast(LINES_SCHEMA)


def _flat(column: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """Offsets (from 0) and values of a list column with at least one row."""
    array = pa.concat_arrays(column.chunks)
    offsets = array.offsets.to_numpy()
    return offsets - offsets[0], array.flatten().to_numpy(zero_copy_only=False)
