"""INPUT as a stream of lines, from any byte offset on.

Plain, gzip and zstd files are told apart by their first bytes, not by their names. Offsets count bytes of the
*uncompressed* stream, so a cursor means the same for all three; only a plain file can seek to one, the others are
read again up to it. Memory is bounded: a line beyond the cap is skipped over in pieces and handed out as a problem.

Lines are numbered from 1 and blank ones count, so that a number is what an editor shows.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, cast

import zstandard

from gristmill.intake.errors import InputError
from gristmill.intake.json_array import ArrayError, begins_array, elements
from gristmill.intake.options import DEFAULT_MAX_LINE_BYTES
from gristmill.intake.zstd_stream import ZstdStream

BUFFER_BYTES = 1 << 20
_HEAD_OF_LONG_LINE_BYTES = 64 << 10
_BOM = b"\xef\xbb\xbf"
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_FOREIGN = {
    b"PAR1": "a Parquet file",
    b"PK\x03\x04": "a zip archive",
    b"BZh": "a bzip2 file",
    b"\xfd7zXZ\x00": "an xz file",
    b"ARROW1": "an Arrow file",
    b"SQLite format 3": "an SQLite database",
}
_DAMAGE = (EOFError, gzip.BadGzipFile, zlib.error, zstandard.ZstdError)


class Line(NamedTuple):
    """One line that is not blank.

    Attributes:
        number: 1-based.
        offset_after: where the next line begins, bytes of the uncompressed stream.
        data: the line; only its first 64 KiB when it has a problem.
        problem: why it can't be used whatever it holds, or None.
    """

    number: int
    offset_after: int
    data: bytes
    problem: str | None = None


def open_lines(
    path: str | Path,
    offset: int = 0,
    *,
    number: int = 0,
    max_line_bytes: int = DEFAULT_MAX_LINE_BYTES,
    arrays: bool = False,
) -> Iterator[Line]:
    """The lines of `path` from `offset` on, `number` lines lying before it.

    With `arrays`, a file that is one JSON array is read, too: each element is a line, numbered from 1.

    Raises:
        InputError: not readable, compressed data damaged, or not UTF-8 text at all.
    """
    path = Path(path)
    try:
        with path.open("rb", buffering=BUFFER_BYTES) as file:
            stream = _uncompressed(path, cast("io.BufferedReader", file))
            head = stream.peek(16)
            _refuse_foreign(path, head[:16])
            is_array = arrays and begins_array(head)
            _advance(path, stream, offset, seek=stream is file)
            if is_array:
                yield from _elements(stream, offset, number, max_line_bytes)
            else:
                yield from _lines(stream, offset, number, max_line_bytes)
    except ArrayError as error:
        raise InputError(f"{path} {error}") from error
    except _DAMAGE as error:
        raise InputError(f"{path} is damaged or cut short: its compressed data can't be read to the end") from error
    except OSError as error:
        raise InputError(f"{path} can't be read: {error.strerror or error}") from error


def _uncompressed(path: Path, file: io.BufferedReader) -> io.BufferedReader:
    head = file.peek(4)[:4]
    if head.startswith(_GZIP):
        return io.BufferedReader(cast("io.RawIOBase", gzip.GzipFile(fileobj=file)), BUFFER_BYTES)
    if head == _ZSTD:
        return io.BufferedReader(ZstdStream(file), BUFFER_BYTES)
    return file


def _refuse_foreign(path: Path, head: bytes) -> None:
    if head.startswith(_UTF16) or head[1:4:2] == b"\0\0" or head[0:3:2] == b"\0\0":
        raise InputError(f"{path} is UTF-16 text: convert it first, with iconv -f UTF-16 -t UTF-8")
    for magic, what in _FOREIGN.items():
        if head.startswith(magic):
            raise InputError(f"{path} is {what}: the input must be JSON lines, plain, .gz or .zst")


def _advance(path: Path, stream: io.BufferedReader, offset: int, *, seek: bool) -> None:
    """Stand at `offset`; only a plain file can `seek`, and it would also seek beyond its end."""
    left = offset
    if seek and offset <= path.stat().st_size:
        stream.seek(offset)
        return
    while left:
        piece = stream.read(min(left, BUFFER_BYTES))
        if not piece:
            raise InputError(f"{path} ends before byte {offset}, where the work had stopped: was it replaced?")
        left -= len(piece)


def _elements(stream: io.BufferedReader, offset: int, number: int, cap: int) -> Iterator[Line]:
    for element in elements(stream, offset, cap):
        number += 1
        problem = f"is longer than {cap:,} bytes, the most that a request may have" if element.too_long else None
        yield Line(number, element.offset_after, element.data, problem)


def _lines(stream: io.BufferedReader, offset: int, number: int, cap: int) -> Iterator[Line]:
    readline = stream.readline
    while data := readline(cap + 1):
        number += 1
        offset += len(data)
        problem = None
        if len(data) > cap:
            offset += _skip_rest(stream, data, cap)
            problem = f"is longer than {cap:,} bytes, the most that a line may have: refer to pictures by path"
            data = data[:_HEAD_OF_LONG_LINE_BYTES]
        if number == 1 and data.startswith(_BOM):
            data = data[len(_BOM) :]
        if problem or not data.isspace():
            yield Line(number, offset, data, problem)


def _skip_rest(stream: io.BufferedReader, data: bytes, cap: int) -> int:
    """Read on to the end of a line that is too long; returns how many more bytes it had."""
    more = 0
    while not data.endswith(b"\n"):
        data = stream.readline(min(cap, BUFFER_BYTES))
        if not data:
            break
        more += len(data)
    return more
