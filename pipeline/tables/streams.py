"""Files as blocks of UTF-8 bytes: decompressed, decoded, byte-order mark removed, in bounded memory."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

import pyarrow as pa

from pipeline.tables.records import CHUNK_BYTES, Damaged

HEAD_BYTES = 64 * 1024
MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bz2"}
FOREIGN = {
    b"PK\x03\x04": "a zip or Office file: export it as CSV or unpack it",
    b"\xfd7zXZ": "an xz file: unpack it, or compress it as gz, zst or bz2",
    b"SQLite format 3": "an SQLite database: export the table as CSV",
    b"version https://git-lfs": "a Git LFS pointer, not the file itself: run `git lfs pull`",
}
MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"),
         (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))  # fmt: skip
UNDECODABLE = "\udcff"  # stands for undecodable bytes; as a lone surrogate it can never pass for text


def compression_of(head: bytes) -> str | None:
    """Compression by a file's first bytes; its name does not count."""
    for magic, name in MAGIC.items():
        if head.startswith(magic) and (name != "bz2" or head[4:10] in (b"1AY&SY", b"\x17\x72\x45\x38\x50\x90")):
            return name
    return None


def raw_blocks(file: Path, size: int = CHUNK_BYTES) -> Iterator[bytes]:
    """Decompressed bytes in blocks of `size`; several gz, zst or bz2 members follow each other.

    Raises Damaged where a stream is cut, after all that could be unpacked before.
    """
    with open(file, "rb") as handle:
        compression = compression_of(handle.read(16))
    read, held = 0, bytearray()
    for step in (size, 4096, 1):  # a failing read gives nothing at all, so the last block is asked for in smaller ones
        try:
            with pa.input_stream(str(file), compression=compression) as stream:
                _skip(stream, read)
                while block := stream.read(step):
                    read += len(block)
                    held += block
                    if len(held) >= size:
                        yield bytes(held)
                        held.clear()
                fault = None
                break
        except OSError as error:
            if compression is None:
                raise
            fault = error
    if held:
        yield bytes(held)
    if fault:
        raise Damaged(f"the {compression} stream is cut or damaged after {read:,} bytes of content ({fault})")


def _skip(stream: pa.NativeFile, count: int) -> None:
    while count:
        count -= len(stream.read(min(count, CHUNK_BYTES)))


def read_head(file: Path, size: int = HEAD_BYTES) -> bytes:
    """The first `size` bytes of content, decompressed. Raises Damaged for formats that are not data at all."""
    head = next(raw_blocks(file, size), b"")
    for magic, what in FOREIGN.items():
        if head.startswith(magic):
            raise Damaged(f"it is {what}")
    return head


def utf8_blocks(file: Path, encoding: str) -> Iterator[bytes]:
    """Content as UTF-8 bytes without a leading byte-order mark. Invalid UTF-8 passes through, to be refused row by row.

    A named other encoding is decoded strictly: bytes that do not belong to it come out as invalid UTF-8, never as
    other characters. Raises Damaged where the mark or the content contradicts the name.
    """
    head = read_head(file)
    marked = byte_order_mark(head)
    plain = codecs.lookup(encoding).name
    check_encoding(head, plain, marked)
    if plain in ("utf-8", "utf-8-sig") or marked == "utf-8":
        yield from _without_mark(raw_blocks(file))
    else:
        yield from _without_mark(_transcoded(raw_blocks(file), plain))


def byte_order_mark(head: bytes) -> str | None:
    """The encoding whose mark a file starts with."""
    return next((name for mark, name in MARKS if head.startswith(mark)), None)


def check_encoding(head: bytes, encoding: str, marked: str | None) -> None:
    """Refuse what would come out as other characters than were written."""
    utf8 = encoding in ("utf-8", "utf-8-sig")
    if marked not in (None, "utf-8") and not encoding.replace("_", "-").startswith(str(marked)):
        raise Damaged(f"it starts with the byte-order mark of {marked}; set data.encoding: {marked}")
    if utf8 and marked is None and head[:2] != b"\0\0" and (head[1:2] == b"\0" or head[:1] == b"\0") and len(head) > 1:
        raise Damaged("every second byte is zero, as in UTF-16 without a mark; set data.encoding: utf-16-le or utf-16-be")
    if not utf8 and marked is None and looks_like_utf8(head):
        raise Damaged(f"it is valid UTF-8, although data.encoding says {encoding}; set data.encoding: utf-8")


def looks_like_utf8(head: bytes) -> bool:
    """True for text with many non-ASCII bytes that all form UTF-8, which other encodings do by chance only when short."""
    return is_utf8(head) and len(head) - len(head.translate(None, bytes(range(128, 256)))) >= 24


def is_utf8(head: bytes) -> bool:
    """True for the beginning of UTF-8 text, even when cut inside a character."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return True


def _without_mark(blocks: Iterable[bytes]) -> Iterator[bytes]:
    first = True
    for block in blocks:
        if first and block.startswith(codecs.BOM_UTF8):
            block = block[len(codecs.BOM_UTF8) :]
        first = False
        if block:
            yield block


def _transcoded(blocks: Iterable[bytes], encoding: str) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(encoding)("pipeline_undecodable")
    for block in chain(blocks, [b""]):
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeError as error:
            raise Damaged(f"it is not {encoding}: {error}; set data.encoding to what it is (utf-16-le, utf-16-be, ...)") from None
        if text:
            yield text.encode("utf-8", "surrogatepass")


def _mark_undecodable(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return UNDECODABLE, error.end


codecs.register_error("pipeline_undecodable", _mark_undecodable)
