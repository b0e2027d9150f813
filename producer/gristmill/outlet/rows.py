"""The fixed-width rows of the files in ``OUT.gm/``, all big-endian.

=========  =====  ===================================================================================================
file       bytes  row
=========  =====  ===================================================================================================
seg-*.idx  52     ordinal, request key, result number, offset and length in seg-*.jsonl, class code (0 ok), crc32
order      16     by ordinal: offset, length, segment; length 0 is "not there"
carried    40     ordinal, ordinal in the file it lies in, result number, offset, length, source
=========  =====  ===================================================================================================

A source is the number of a segment, `BASE` for the OUT of before, or `UNUSED` for ``OUT.unused``.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

BASE = 0
UNUSED = 0xFFFFFFFF

_INDEX = struct.Struct(">Q16sQQIB3x")
_CRC = struct.Struct(">I")
INDEX_BYTES = _INDEX.size + _CRC.size
ORDER = struct.Struct(">QII")
CARRIED = struct.Struct(">QQQQII")


class IndexRow(NamedTuple):
    """One durable line of a segment."""

    ordinal: int
    key: bytes
    number: int
    offset: int
    length: int
    code: int


class Place(NamedTuple):
    """Where the line of `ordinal` lies; it must be renumbered when `written` differs."""

    ordinal: int
    written: int
    number: int
    offset: int
    length: int
    source: int


class Span(NamedTuple):
    """Some whole lines that lie behind one another."""

    source: int
    offset: int
    length: int


def pack_index(row: IndexRow) -> bytes:
    packed = _INDEX.pack(*row)
    return packed + zlib.crc32(packed).to_bytes(4, "big")


def unpack_index(data: bytes) -> Iterator[IndexRow]:
    """The whole rows at the start of `data`, up to the first that is torn or damaged."""
    view = memoryview(data)
    for at in range(0, len(data) - INDEX_BYTES + 1, INDEX_BYTES):
        row = view[at : at + _INDEX.size]
        if zlib.crc32(row) != _CRC.unpack_from(data, at + _INDEX.size)[0]:
            return
        yield IndexRow._make(_INDEX.unpack(row))
