"""What comes from the store, handed on in the pieces in which it came.

`asyncio.StreamReader` copies all that it reads three times: into its buffer, out of it, and once more. The parser takes
pieces of any size, so here a piece is kept and handed on as it is.

The reader is made inside `asyncio.open_connection`, which takes no other class, so it is changed afterwards. It uses
names of StreamReader that are not public, as the client library does for its own look at them.
"""

from __future__ import annotations

import asyncio
from typing import Any

HIGH_WATER_BYTES = 1 << 20
"""So much may wait for the parser; beyond, the store is not read."""


class Pieces(asyncio.StreamReader):
    """For one caller of `read`; the other ways to read are not for use."""

    _buffer: bytes
    _limit: int
    _paused: bool
    _transport: Any
    _eof: bool
    _exception: BaseException | None

    def feed_data(self, data: Any) -> None:
        """Keep a piece; several that come before they are read become one."""
        assert not self._eof
        self._buffer = self._buffer + data if self._buffer else bytes(data)
        self._wakeup_waiter()  # type: ignore[attr-defined]  # not in the published types
        if self._transport is not None and not self._paused and len(self._buffer) > self._limit:
            self._transport.pause_reading()
            self._paused = True

    async def read(self, n: int = -1) -> bytes:
        """All that there is, whatever `n`; empty when the connection has ended."""
        if self._exception is not None:
            raise self._exception
        if not self._buffer and not self._eof:
            await self._wait_for_data("read")  # type: ignore[attr-defined]  # not in the published types
        data, self._buffer = self._buffer, b""
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
        return data


def in_pieces(reader: asyncio.StreamReader) -> None:
    """Have `reader` hand on what comes as it comes."""
    changed: Any = reader
    changed.__class__ = Pieces
    changed._buffer = bytes(changed._buffer)
    changed._limit = HIGH_WATER_BYTES
