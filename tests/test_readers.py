"""Readers: bytes to records. What is sound comes through unchanged, what is broken is named, whatever the format."""

import bz2
import codecs
import contextlib
import csv
import datetime
import gzip
import io
import json
import tracemalloc
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.errors import ParamsError
from pipeline.core.params import DataParams, load_params
from pipeline.tables.formats import detect_format
from pipeline.tables.readers import PARSERS, READERS
from pipeline.tables.records import Bad, Damaged, Record

ROWS = [
    {"id": 1, "text": "one", "nested": {"a": 1}},
    {"id": 2, "text": "二", "nested": {"b": [1, 2]}},
    {"id": 3, "text": "🙂", "nested": {}},
]


def read(file: Path, kind: str | None = None, **params: object) -> list[Record]:
    data = DataParams(**params)
    chunks = READERS[kind or detect_format(file, nested=data.records is not None)](file, data)
    return [record for chunk in chunks for record in PARSERS[chunk.kind](chunk, data)]


def values(file: Path, kind: str | None = None, **params: object) -> list[object]:
    return [record.value for record in read(file, kind, **params)]


def reasons(file: Path, kind: str | None = None, **params: object) -> list[str | None]:
    return [record.value.reason if isinstance(record.value, Bad) else None for record in read(file, kind, **params)]


def put(tmp_path: Path, name: str, content: bytes | str) -> Path:
    file = tmp_path / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


def jsonl(rows: list, end: str = "\n") -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + end for row in rows)


def zst(data: bytes) -> bytes:
    return pa.compress(data, codec="zstd", asbytes=True)


# --- bytes


def test_a_byte_order_mark_changes_nothing(tmp_path):
    plain = read(put(tmp_path, "a.jsonl", jsonl(ROWS)))
    assert read(put(tmp_path, "b.jsonl", codecs.BOM_UTF8 + jsonl(ROWS).encode())) == plain
    joined = put(tmp_path, "c.jsonl", jsonl(ROWS[:2]).encode() + codecs.BOM_UTF8 + jsonl(ROWS[2:]).encode())
    assert read(joined) == plain
    assert values(put(tmp_path, "d.jsonl", jsonl([{"text": "a\ufeffb"}]))) == [{"text": "a\ufeffb"}]


def test_a_byte_order_mark_is_no_part_of_the_first_column_name(tmp_path):
    assert values(put(tmp_path, "a.csv", codecs.BOM_UTF8 + b"id,text\n1,x\n")) == [{"id": "1", "text": "x"}]


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1e"])
def test_only_line_feeds_end_a_record(tmp_path, mark):
    text = f"a{mark}b"
    if mark >= "\x20":
        assert values(put(tmp_path, "a.jsonl", jsonl([{"text": text}, {"text": "c"}]))) == [{"text": text}, {"text": "c"}]
    assert values(put(tmp_path, "b.csv", f"id,text\n1,{text}\n2,c\n")) == [{"id": "1", "text": text}, {"id": "2", "text": "c"}]


def test_carriage_returns_before_line_feeds_do_not_count(tmp_path):
    assert values(put(tmp_path, "a.jsonl", jsonl(ROWS, "\r\n"))) == ROWS
    assert values(put(tmp_path, "b.csv", "id,text\r\n1,x\r\n\r\n2,y")) == [{"id": "1", "text": "x"}, {"id": "2", "text": "y"}]


def test_surrogates_nul_and_bad_bytes_cost_their_own_row_only(tmp_path):
    lines = [rb'{"text": "\ud83d"}', rb'{"text": "\ud83d\ude42"}', rb'{"text": "a\u0000b"}', b'{"text": "a\xffb"}', b'{"text": "ok"}']
    records = read(put(tmp_path, "a.jsonl", b"\n".join(lines)))
    assert [r.value.reason if isinstance(r.value, Bad) else r.value["text"] for r in records] == [
        "lone_surrogate", "🙂", "a\0b", "invalid_utf8", "ok",
    ]  # fmt: skip
    assert "0xff at offset 11" in records[3].value.detail


ENCODED = {
    "gb18030": "今天天气很好，我们去公园",
    "big5": "今天天氣很好，我們去公園",
    "shift_jis": "今日は天気がいいですね",
    "cp1252": "naïve café – “déjà vu”",
    "utf-16": "混合 text",
    "utf-16-le": "混合 text",
    "utf-32": "混合 text",
}


@pytest.mark.parametrize("encoding", ENCODED)
def test_a_named_encoding_is_read_and_an_unnamed_one_never_becomes_other_characters(tmp_path, encoding):
    rows = [{"id": 1, "text": ENCODED[encoding]}, {"id": 2, "text": "plain"}]
    file = put(tmp_path, "a.jsonl", jsonl(rows).encode(encoding))
    assert values(file, "jsonl", encoding=encoding) == rows
    if encoding.startswith("utf"):
        with pytest.raises(Damaged, match=r"data\.encoding"):
            read(file, "jsonl")
    else:
        first, second = values(file, "jsonl")
        assert "data.encoding" in first.detail
        assert second == rows[1]


@pytest.mark.parametrize("encoding", ENCODED)
def test_an_encoding_does_not_hide_the_format(tmp_path, encoding):
    rows = [{"text": ENCODED[encoding]}] * 2
    assert detect_format(put(tmp_path, "rows.txt", jsonl(rows).encode(encoding)), encoding=encoding) == "jsonl"
    assert detect_format(put(tmp_path, "rows.json", json.dumps(rows, indent=1).encode(encoding)), encoding=encoding) == "json"
    if encoding not in ("utf-16-le",):
        assert detect_format(put(tmp_path, "rows.json", jsonl(rows).encode(encoding))) == "jsonl"


def test_a_sixteen_bit_encoding_needs_its_mark_or_its_byte_order(tmp_path):
    rows = [{"a": "ä", "text": "混合"}]
    marked = put(tmp_path, "a.csv", codecs.BOM_UTF16_LE + "a,text\nä,混合\n".encode("utf-16-le"))
    assert values(marked, "csv", encoding="utf-16") == values(marked, "csv", encoding="utf-16-le") == rows
    with pytest.raises(Damaged, match="utf-16-le"):
        read(put(tmp_path, "b.csv", "a,text\nä,混合\n".encode("utf-16-le")), "csv", encoding="utf-16")


def test_bytes_that_do_not_belong_to_the_named_encoding_are_refused(tmp_path):
    good = '{"text": "你好"}\n'.encode("gb18030")
    assert reasons(put(tmp_path, "a.jsonl", good + b'{"text": "\xff"}\n' + good), encoding="gb18030") == [None, "invalid_utf8", None]
    with pytest.raises(Damaged, match=r"set data\.encoding: utf-8"):
        read(put(tmp_path, "b.jsonl", jsonl([{"text": "这是一个用统一码写成的句子"}] * 2)), encoding="gb18030")


# --- JSON


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"id":1,"id":2}', "duplicate_key"),
        ('{"a":{"b":1,"b":2}}', "duplicate_key"),
        ('{"k":5}xyz', "invalid_json"),
        ('{"k":NaN}', "invalid_json"),
        ('{"k":-Infinity}', "invalid_json"),
        ("{'k':1}", "invalid_json"),
        ('{"k":1,}', "invalid_json"),
        ('{"k":"\\u12"}', "invalid_json"),
        ('{"k":' + "9" * 5000 + "}", "number_out_of_range"),
        ("[" * 100_000, "too_deep"),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, "too_deep"),
    ],
)
def test_faulty_json_costs_one_row(tmp_path, line, reason):
    file = put(tmp_path, "a.jsonl", f'{{"text":"before"}}\n{line}\n{{"text":"after"}}\n')
    assert reasons(file, "jsonl") == [None, reason, None]


def test_a_key_said_twice_with_one_value_is_no_contradiction(tmp_path):
    assert values(put(tmp_path, "a.jsonl", '{"a":"b","a":"b"}')) == [{"a": "b"}]


def test_numbers_keep_their_digits(tmp_path):
    line = '{"a":18446744073709551617,"b":9007199254740993,"c":1.10,"d":1e2}'
    (value,) = values(put(tmp_path, "a.jsonl", line))
    assert [str(value[key]) for key in "abcd"] == ["18446744073709551617", "9007199254740993", "1.10", "1e2"]


def test_a_long_line_is_read_up_to_the_limit_and_costs_one_row_above(tmp_path):
    small = {"text": "x"}
    file = put(tmp_path, "a.jsonl", jsonl([small, {"text": "y" * 3_000_000}, small, {"text": "z" * 40_000_000}, small]))
    records = read(file)
    assert [record.number for record in records] == [1, 2, 3, 4, 5]
    assert [isinstance(record.value, Bad) and record.value.reason for record in records] == [False, False, False, "too_large", False]
    assert len(values(file, max_row_bytes=50_000_000)[3]["text"]) == 40_000_000
    assert reasons(put(tmp_path, "b.jsonl", jsonl([small, {"text": "longer"}])), max_row_bytes=14) == [None, "too_large"]


@pytest.mark.parametrize("block", [1, 2, 3, 7, 64])
@pytest.mark.parametrize("limit", [10, 25, 1000])
def test_lines_are_the_same_whatever_blocks_they_come_in(block, limit):
    from pipeline.tables.lines import each_line, whole_lines

    content = b"short\n\n" + b"x" * 24 + b"\n" + b"y" * 30 + b"\nlast" + b"z" * 12
    blocks = [content[at : at + block] for at in range(0, len(content), block)]
    found = [(n, line if isinstance(line, bytes) else line.reason) for n, line in each_line(whole_lines(blocks, limit), limit)]
    expected = [(n, line if len(line) <= limit else "too_large") for n, line in enumerate(content.split(b"\n"), 1)]
    assert found == expected


@pytest.mark.parametrize("block", [1, 2, 5, 4096])
def test_a_document_is_cut_the_same_whatever_blocks_it_comes_in(block):
    from pipeline.tables.json_document import Cutter, elements

    rows = [{"a": 'x "quoted" \\ [] {} , \n', "b": [1, {"c": "]}"}]}, "text, with [", 5, [], {"": ""}]
    content = (" [ " + " , ".join(json.dumps(row) for row in rows) + " ] ").encode()
    cutter = Cutter((content[at : at + block] for at in range(0, len(content), block)), 1000)
    assert [json.loads(item) for item in elements(cutter)] == rows
    cutter.end()


def test_an_array_loses_only_its_faulty_element(tmp_path):
    file = put(tmp_path, "a.json", '[{"text":"a"}, {"text":}, "b", {"text":"' + "c" * 100 + '"}, {"text":"d"}]')
    assert reasons(file, max_row_bytes=50) == [None, "invalid_json", None, "too_large", None]


def test_chunks_are_bounded_by_records_too(tmp_path):
    for name, content in (("a.jsonl", "1\n" * 100_000), ("b.json", "[" + "1," * 99_999 + "1]"), ("c.csv", "a\n" + "1\n" * 100_000)):
        file = put(tmp_path, name, content)
        kind = name.partition(".")[2]
        assert len(list(READERS[kind](file, DataParams()))) == 4
        numbers = [record.number for record in read(file, kind)]
        assert numbers == list(range(numbers[0], numbers[0] + 100_000))


@pytest.mark.parametrize("content", ['[{"a":1}', '[{"a":1},]', '[{"a":1}] x', '[{"a":1}}', '[{"a":1},,{"a":2}]', '[{"a":"b', "[1][2]"])
def test_a_broken_document_is_damaged(tmp_path, content):
    with pytest.raises(Damaged):
        read(put(tmp_path, "a.json", content))


def test_rows_of_a_nested_document_see_their_parents_fields(tmp_path):
    first = [{"context": "C1", "qas": [{"id": "1", "q": "a"}, {"id": "2", "q": "b"}]}, {"context": "C2", "qas": []}]
    second = [{"context": "C4"}, {"context": "C3", "qas": [{"id": "3", "q": "c", "title": "own"}]}]
    document = {"data": [{"title": "T", "paragraphs": first}, {"title": "U", "paragraphs": second}], "version": 1.10}
    file = put(tmp_path, "a.json", json.dumps(document, indent=2))
    found = values(file, records="data[].paragraphs[].qas[]")
    assert found.pop(2).reason == "no_records"
    assert [(row["id"], row["q"], row["context"], row["title"], str(row["version"])) for row in found] == [
        ("1", "a", "C1", "T", "1.1"), ("2", "b", "C1", "T", "1.1"), ("3", "c", "C3", "own", "1.1"),
    ]  # fmt: skip
    assert values(put(tmp_path, "b.json", '{"k": 1, "example": [{"a": 2}]}'), "json", records="example[]") == [{"k": 1, "a": 2}]
    with pytest.raises(Damaged, match="exmple"):
        read(file, records="exmple[]")
    with pytest.raises(Damaged, match="outside its rows"):
        read(put(tmp_path, "c.json", '{"k": 1, "k": 2, "l": tru, "example": []}'), records="example[]")
    assert detect_format(put(tmp_path, "d.json", json.dumps(document)), nested=True) == "json"


# --- CSV


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_csv_follows_rfc_4180(tmp_path, end):
    rows = [
        ["id", "text"],
        ["1", 'say "hi", ok'],
        ["2", f"two{end}lines"],
        ["3", ""],
        ["4", "plain"],
        ["5", '"'],
        ["6", f'{end}"{end}'],
        ["7", "8"],
    ]
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator=end).writerows(rows)
    assert values(put(tmp_path, "a.csv", text.getvalue())) == [dict(zip(*pair)) for pair in ((rows[0], row) for row in rows[1:])]


def test_joined_csv_files_bring_their_header_again(tmp_path):
    one = codecs.BOM_UTF8 + b"id,text\n1,a\n"
    assert values(put(tmp_path, "a.csv", one + one))[0::2] == [{"id": "1", "text": "a"}] * 2
    assert reasons(put(tmp_path, "a.csv", one + one)) == [None, "repeated_header", None]


def test_faulty_csv_records_cost_their_own_line(tmp_path):
    content = 'id,text\n1,a\n2,b,c\n3\n4,5" pipe\n5,"x"y\n6,ok\n7,"never closed\n8,fine\n9,"also ""fine"""\n'
    records = read(put(tmp_path, "a.csv", content))
    assert [record.number for record in records] == list(range(2, 11))
    assert [record.value.reason if isinstance(record.value, Bad) else record.value["id"] for record in records] == [
        "1", "column_count", "column_count", "csv_quote", "csv_quote", "6", "csv_quote", "8", "9",
    ]  # fmt: skip


def test_quotes_are_text_where_told_and_columns_are_numbered_without_a_header(tmp_path):
    file = put(tmp_path, "a.tsv", '"Hi," she said.\t"x"\n5" pipe\ty\n')
    assert values(file, header=False, quoting=False) == [
        {"column_1": '"Hi," she said.', "column_2": '"x"'},
        {"column_1": '5" pipe', "column_2": "y"},
    ]
    assert values(put(tmp_path, "b.csv", "a;b\n1,5;2\n"), delimiter=";") == [{"a": "1,5", "b": "2"}]
    with pytest.raises(Damaged, match="'a' twice"):
        read(put(tmp_path, "c.csv", "a,a\n1,2\n"))


def test_long_cells_and_bad_bytes_in_csv(tmp_path):
    content = b"id,text\n1," + b"x" * 3_000_000 + b"\n2,\xff\n3," + b"y" * 20_000_000 + b"\n4,\xe4\xbd\xa0\n"
    file = put(tmp_path, "a.csv", content)
    assert reasons(file) == [None, "invalid_utf8", "too_large", None]
    assert len(values(file)[0]["text"]) == 3_000_000


# --- compression and formats


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, zst])
def test_compressed_files_may_have_several_members_and_any_name(tmp_path, pack):
    content = jsonl(ROWS).encode()
    half = len(content) // 2
    assert values(put(tmp_path, "named.jsonl", pack(content[:half]) + pack(content[half:]))) == ROWS


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, zst])
def test_a_cut_file_gives_its_whole_rows_and_then_says_so(tmp_path, pack):
    rows = [{"text": f"row {i} {i * i * 7919 % 10007}"} for i in range(60_000)]
    packed = pack(jsonl(rows).encode())
    file = put(tmp_path, "a.jsonl.x", packed[: len(packed) * 2 // 3])
    found: list[object] = []

    def read_on() -> None:
        for chunk in READERS["jsonl"](file, DataParams()):
            found.extend(record.value for record in PARSERS[chunk.kind](chunk, DataParams()))

    with pytest.raises(Damaged, match="cut or damaged"):
        read_on()
    assert found == rows[: len(found)]
    assert len(found) > 1000


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_rows_before_a_cut_are_not_lost_in_any_format(tmp_path, kind):
    rows = [{"text": f"row {i} {i * i * 7919 % 10007}"} for i in range(6000)]
    content = "text\n" + "".join(row["text"] + "\n" for row in rows) if kind == "csv" else json.dumps(rows)
    packed = gzip.compress(content.encode())
    found: list[object] = []

    def read_on() -> None:
        for chunk in READERS[kind](put(tmp_path, "a.gz", packed[: len(packed) // 2]), DataParams()):
            found.extend(record.value for record in PARSERS[chunk.kind](chunk, DataParams()))

    with pytest.raises(Damaged):
        read_on()
    assert found == rows[: len(found)]
    assert len(found) > 2000


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("eval.json", '{"a":1}\n{"a":2}\n', "jsonl"),
        ("eval.json", '{\n "a": 1\n}\n', "json"),
        ("rows.jsonl", '[{"a":1},\n{"a":2}]', "json"),
        ("rows.txt", '{"a":1}\n{"a":2}', "jsonl"),
        ("rows.csv", '{"a":1}\n{"a":2}', "jsonl"),
        ("rows.csv", "[a],{b}\n1,2\n", "csv"),
        ("rows.tsv.gz", "a\tb\n", "tsv"),
        ("rows.jsonl", '{"a":1\n{"a":2}\n', "jsonl"),
        ("rows.jsonl", "", "jsonl"),
        ("rows.jsonl", '[1]\n{"a":2}\n', "jsonl"),
        ("rows.jsonl", "[\n{}\n]", "json"),
        ("rows.json", '{"a": "' + "x" * 100_000 + '"}\n{"a": 2}', "jsonl"),
    ],
)
def test_content_decides_where_the_name_lies(tmp_path, name, content, kind):
    assert detect_format(put(tmp_path, name, content)) == kind


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("rows.txt", b"plain words", r"data\.format"),
        ("rows.jsonl", b"PK\x03\x04....", "Office"),
        ("rows.parquet", b"version https://git-lfs.github.com/spec/v1\n", "lfs pull"),
        ("rows.parquet", b"xxxx", "cut"),
    ],
)
def test_what_is_no_data_is_named(tmp_path, name, content, says):
    with pytest.raises(Damaged, match=says):
        read(put(tmp_path, name, content))


def test_a_bomb_never_fills_the_memory(tmp_path):
    """Two hundred megabytes on one line, from two hundred kilobytes."""
    file = tmp_path / "bomb.jsonl.gz"
    with gzip.open(file, "wb", compresslevel=1) as handle:
        handle.write(b'{"text": "')
        for _ in range(200):
            handle.write(b"0" * 1_000_000)
        handle.write(b'"}\n{"text": "after"}\n')
    tracemalloc.start()
    assert reasons(file) == ["too_large", None]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 60_000_000


# --- Parquet


def parquet(tmp_path: Path, table: pa.Table, **options: object) -> Path:
    pq.write_table(table, tmp_path / "a.parquet", **options)
    return tmp_path / "a.parquet"


def test_parquet_types_become_plain_values(tmp_path):
    moment = datetime.datetime(2024, 2, 29, 12, 30, tzinfo=datetime.UTC)
    table = pa.table({
        "string": ["a", None], "large": pa.array(["b", "c"], pa.large_string()), "binary": pa.array([b"\xe4\xbd\xa0", b"\xff"]),
        "dictionary": pa.array(["x", "x"]).dictionary_encode(), "list": [["p", "q"], []], "struct": [{"a": 1, "b": "z"}, None],
        "big": pa.array([2**64 - 1, 0], pa.uint64()), "money": pa.array([Decimal("1.10"), None]), "when": pa.array([moment, None]),
    })  # fmt: skip
    first, second = values(parquet(tmp_path, table))
    assert first | {"when": None} == {
        "string": "a", "large": "b", "binary": "你", "dictionary": "x", "list": ["p", "q"], "struct": {"a": 1, "b": "z"},
        "big": 2**64 - 1, "money": "1.10", "when": None,
    }  # fmt: skip
    assert str(first["when"]).startswith("2024-02-29 12:30")
    assert (second["string"], second["binary"], second["struct"]) == (None, b"\xff", None)


def test_parquet_text_that_is_no_utf8_costs_its_row(tmp_path):
    broken = pa.Array.from_buffers(pa.string(), 3, pa.array([b"a", b"\xff", b"c"]).buffers())
    assert values(parquet(tmp_path, pa.table({"text": broken}))) == [{"text": "a"}, {"text": b"\xff"}, {"text": "c"}]
    nested = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3]), broken)
    assert reasons(parquet(tmp_path, pa.table({"text": nested}))) == [None, "invalid_utf8", None]


def test_cut_or_flipped_parquet_is_damaged(tmp_path):
    table = pa.table({"text": [f"row {i} {i * 7919 % 1009}" for i in range(5000)]})
    file = parquet(tmp_path, table, write_page_checksum=True, compression="none", use_dictionary=False)
    whole = file.read_bytes()
    assert len(read(file)) == 5000
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(Damaged):
        read(file)
    middle = len(whole) // 3
    file.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    with pytest.raises(Damaged, match="checksum"):
        read(file)


def test_packed_and_empty_parquet_files_are_read(tmp_path):
    table = pa.table({"text": ["a", "b"]})
    whole = parquet(tmp_path, table).read_bytes()
    assert values(put(tmp_path, "b.parquet.gz", gzip.compress(whole)), "parquet") == [{"text": "a"}, {"text": "b"}]
    assert values(put(tmp_path, "b.parquet.gz", gzip.compress(whole))) == [{"text": "a"}, {"text": "b"}]
    assert read(parquet(tmp_path, table.slice(0, 0))) == []


def test_rows_that_share_a_large_value_are_not_unfolded_at_once(tmp_path):
    table = pa.table({"id": range(300), "text": pa.array(["x" * 900_000] * 299 + ["y"]).dictionary_encode(), "list": [["a"]] * 300})
    file = parquet(tmp_path, table, dictionary_pagesize_limit=10_000_000)
    assert file.stat().st_size < 1_000_000
    chunks = list(READERS["parquet"](file, DataParams()))
    assert sum(chunk.data.num_rows for chunk in chunks) == 300
    assert max(chunk.data.num_rows for chunk in chunks) <= 5
    assert values(file)[-1] == {"id": 299, "text": "y", "list": ["a"]}
    table = pa.table({"text": ["a", "b" * 5_000_000, "c"]})
    assert reasons(parquet(tmp_path, table), max_row_bytes=4_500_000) == [None, "too_large", None]


def test_missing_numbers_and_repeated_columns_of_parquet(tmp_path):
    assert values(parquet(tmp_path, pa.table({"id": [1.5, float("nan"), float("inf")]}))) == [{"id": 1.5}, {"id": None}, {"id": None}]
    with pytest.raises(Damaged, match="'a' is there twice"):
        read(parquet(tmp_path, pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"])))


# --- anything at all

FORMATS = ["jsonl", "json", "csv", "tsv", "parquet"]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@given(
    content=st.one_of(st.binary(max_size=200), st.text('[]{}",:\\ntu\n\r\t aé0', max_size=80).map(str.encode)),
    kind=st.sampled_from(FORMATS),
)
def test_no_bytes_can_crash_a_reader(tmp_path_factory, content, kind):
    file = put(tmp_path_factory.getbasetemp(), "any", content)
    with contextlib.suppress(Damaged):
        numbers = [record.number for record in read(file, kind, max_row_bytes=100)]
        assert numbers == sorted(set(numbers))


@given(
    rows=st.lists(st.dictionaries(TEXT, st.one_of(TEXT, st.integers(), st.none(), st.lists(TEXT, max_size=3)), max_size=4), max_size=6),
    data=st.data(),
)
def test_json_rows_come_through_unchanged_in_any_layout(tmp_path_factory, rows, data):
    ascii_only, indent = data.draw(st.booleans()), data.draw(st.sampled_from([None, 1]))
    folder = tmp_path_factory.getbasetemp()
    lines = "".join(json.dumps(row, ensure_ascii=ascii_only) + "\n" for row in rows)
    assert values(put(folder, "x.jsonl", lines), "jsonl") == rows
    assert values(put(folder, "x.json", json.dumps(rows, ensure_ascii=ascii_only, indent=indent)), "json") == rows
    assert values(
        put(folder, "y.json", json.dumps({"a": 1, "r": rows}, ensure_ascii=ascii_only, indent=indent)), "json", records="r[]"
    ) == [{"a": 1, **row} for row in rows]


@given(
    rows=st.lists(st.tuples(TEXT, TEXT), max_size=6), delimiter=st.sampled_from([",", "\t", ";", "、"]), end=st.sampled_from(["\n", "\r\n"])
)
def test_csv_rows_come_through_unchanged(tmp_path_factory, rows, delimiter, end):
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=delimiter, lineterminator=end, quoting=csv.QUOTE_ALL).writerows([("a", "b"), *rows])
    file = put(tmp_path_factory.getbasetemp(), "x.csv", text.getvalue())
    assert values(file, "csv", delimiter=delimiter) == [{"a": a, "b": b} for a, b in rows]


# --- params


@pytest.mark.parametrize(
    "override", ["data.encoding=utf-9", "data.encoding=rot13", "data.delimiter=ab", "data.delimiter='\"'", "data.records=a.b"]
)
def test_impossible_reading_params_name_their_key(override):
    with pytest.raises(ParamsError, match=override.split("=")[0]):
        load_params(None, [override])
