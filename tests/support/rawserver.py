"""A TCP server for tests that answers with exactly the bytes and the manners that the test wants."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

Conversation = Callable[[asyncio.StreamReader, asyncio.StreamWriter, int], Awaitable[None]]
"""What happens on one connection; its number counts from 0."""


class RawServer:
    """``async with RawServer(conversation) as server``: `server.url`, and `server.connections` so far."""

    def __init__(self, conversation: Conversation, *, tls: ssl.SSLContext | None = None) -> None:
        self._conversation = conversation
        self._tls = tls
        self.connections = 0
        self.url = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"{'https' if self._tls else 'http'}://127.0.0.1:{port}/v1"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = self.connections
        self.connections += 1
        try:
            await self._conversation(reader, writer, number)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


async def read_request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Head and body of one request."""
    head = await reader.readuntil(b"\r\n\r\n")
    size = next((int(h.split(b":")[1]) for h in head.split(b"\r\n") if h.lower().startswith(b"content-length")), 0)
    return head, await reader.readexactly(size)


def response(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    """A whole response."""
    lines = [f"HTTP/1.1 {status}", "Content-Type: application/json", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


CHAT_ANSWER = b'{"choices":[{"finish_reason":"stop","message":{"content":"hi"}}]}'
