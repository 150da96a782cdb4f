"""What travels between reading and validating: chunks of raw records, and records with their faults."""

from __future__ import annotations

from typing import Any, NamedTuple

CHUNK_BYTES = 4 * 1024 * 1024
CHUNK_RECORDS = 32_768


class Bad(NamedTuple):
    """Why a record cannot become a row: a reason code and a sentence for people."""

    reason: str
    detail: str


class BadRow(Exception):
    """Raised while one record is parsed or checked; it never ends the file."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.bad = Bad(reason, detail)


class Damaged(Exception):
    """The file itself is broken from some place on; what came before it was sound."""


class Chunk(NamedTuple):
    """Consecutive records of one file, picklable. kind names the parser (readers.PARSERS).

    first: number of the first record: its line, or its place in a Parquet file or JSON array, from 1.
    """

    kind: str
    first: int
    data: Any


class Record(NamedTuple):
    """One parsed record, or what is wrong with it."""

    number: int
    value: Any
