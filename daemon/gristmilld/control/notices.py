"""Reads the supervisor's notices of dead workers and acknowledges each once it has been acted on.

The supervisor keeps a notice until then and tells it again to the next control child, so an acknowledgement too few
costs a repetition, and one too many would cost a worker's requests their quick return.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import msgspec


class Notice(msgspec.Struct, frozen=True):
    """Worker `prefix` is dead: every lease token that starts with it is to be given up, as suspect when it crashed."""

    number: int
    prefix: str
    crashed: bool


class NoticeStream:
    """The notices in the order they were sent; ends when the supervisor says that none will follow."""

    def __init__(self, notices_fd: int, acks_fd: int) -> None:
        self._notices_fd = notices_fd
        self._acks_fd = acks_fd

    async def __aiter__(self) -> AsyncIterator[Notice]:
        reader = asyncio.StreamReader()
        pipe = os.fdopen(self._notices_fd, "rb", buffering=0)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), pipe
        )
        try:
            while line := await reader.readline():
                yield msgspec.json.decode(line, type=Notice)
        finally:
            transport.close()

    def acknowledge(self, notice: Notice) -> None:
        """The notice has been acted on."""
        os.write(self._acks_fd, b"%d\n" % notice.number)  # a few bytes: the pipe of a living supervisor takes them
