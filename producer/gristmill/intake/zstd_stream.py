"""A zstd file as a stream that knows when it was cut short, which the library's own reader does not tell."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import zstandard

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_READ_BYTES = 256 << 10


class ZstdStream(io.RawIOBase):
    """The uncompressed bytes of one or more frames.

    Raises (on reading):
        EOFError: the file ends within a frame.
        zstandard.ZstdError: the data is damaged.
    """

    def __init__(self, file: io.BufferedReader) -> None:
        self._file = file
        self._frame: zstandard.ZstdDecompressionObj | None = None
        self._packed = b""
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        while not self._ready:
            if not self._packed:
                self._packed = self._file.read(_READ_BYTES)
                if not self._packed:
                    if self._frame is not None:
                        raise EOFError("the file ends within a zstd frame")
                    return 0
            self._unpack()
        target = memoryview(buffer).cast("B")
        size = min(len(target), len(self._ready))
        target[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size

    def _unpack(self) -> None:
        if self._frame is None:
            self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._ready = memoryview(self._frame.decompress(self._packed))
        self._packed = b""
        if self._frame.eof:
            self._packed, self._frame = self._frame.unused_data, None
