"""A proxy that passes bytes on until it is told to hurt them: stalls, resets, lost answers, half-closed connections.

It stands between a client and a server (the store, or an endpoint), so that the faults of a network can be made at the
moment that a test wants. What it knows of the protocol is nothing: a *snag* is armed for the next piece of bytes from a
client that holds a text (a script's digest, a URL), and does its harm there.

==============  ======================================================================================================
snag            what happens
==============  ======================================================================================================
drop_reply      the request reaches the server; its answer is thrown away and the connection reset
cut_reply       half of the first piece of the answer reaches the client, then the connection is reset
cut_request     half of the piece reaches the server, then both sides are reset
half_close      the request reaches the server; the client sees the end of the stream instead of the answer
reset           the piece reaches nobody, both sides are reset
==============  ======================================================================================================
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections import Counter
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Literal, Self
from urllib.parse import urlsplit

Snag = Literal["drop_reply", "cut_reply", "cut_request", "half_close", "reset"]
Pipe = tuple[asyncio.StreamReader, asyncio.StreamWriter]
PIECE_BYTES = 1 << 16


class Proxy:
    """``async with Proxy(connect) as proxy``: listens on a free TCP port of this machine.

    Args:
        connect: opens one connection to the server; see `to_url`.
        heed: answers to pieces that hold this text are counted.

    Attributes:
        port: where it listens.
        delay_s: each piece of bytes waits so long.
        hurt: how often each snag has done its harm.
        heeded: how many answers were about to pass to a client that had sent the text of `heed`.
    """

    def __init__(self, connect: Callable[[], Awaitable[Pipe]], *, heed: bytes = b"") -> None:
        self._connect = connect
        self.heed = heed
        self.heeded = 0
        self._gate = asyncio.Event()
        self._gate.set()
        self._stalls = 0
        self._armed: list[tuple[Snag, bytes]] = []
        self._links: set[_Link] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self.port = 0
        self.delay_s = 0.0
        self.hurt: Counter[str] = Counter()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._server.close()
        self._gate.set()
        self.reset_all()
        if self._serving:
            await asyncio.wait(self._serving)
        await self._server.wait_closed()

    @property
    def links(self) -> int:
        """Connections that stand."""
        return len(self._links)

    # -- what a test asks for -------------------------------------------------------------------------------------

    def arm(self, snag: Snag, text: bytes = b"") -> None:
        """Let the next piece from any client that holds `text` come to harm, once."""
        self._armed.append((snag, text))

    def disarm(self) -> None:
        """Forget every snag that has not happened."""
        self._armed.clear()

    def stall(self) -> None:
        """Let nothing pass, in either direction, until `flow`; connections stay, new ones wait. Stalls add up."""
        self._stalls += 1
        self._gate.clear()

    def flow(self) -> None:
        """End one stall."""
        self._stalls -= 1
        if not self._stalls:
            self._gate.set()

    def reset_all(self) -> int:
        """Reset every connection; how many there were."""
        links = list(self._links)
        for link in links:
            link.reset()
        self.hurt["reset_all"] += len(links)
        return len(links)

    # -- how it comes about ---------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        try:
            await self._gate.wait()
            server = await self._connect()
        except OSError:
            writer.transport.abort()
            return
        link = _Link(self, (reader, writer), server)
        self._links.add(link)
        try:
            await link.run()
        finally:
            self._links.discard(link)

    async def pass_on(self) -> None:
        """Wait as long as a piece has to wait here."""
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        await self._gate.wait()

    def snag_for(self, piece: bytes) -> Snag | None:
        """The first armed snag that `piece` meets; it is armed no more."""
        for place, (snag, text) in enumerate(self._armed):
            if text in piece:
                del self._armed[place]
                self.hurt[snag] += 1
                return snag
        return None


class _Link:
    """One connection of a client, and the one to the server that belongs to it."""

    def __init__(self, proxy: Proxy, client: Pipe, server: Pipe) -> None:
        self._proxy = proxy
        self._client_in, self._client_out = client
        self._server_in, self._server_out = server
        self._on_answer: Snag | None = None
        self._heeds = False

    async def run(self) -> None:
        """Pass bytes on until both sides have ended, or either was reset."""
        ways = [asyncio.create_task(self._up()), asyncio.create_task(self._down())]
        try:
            await asyncio.gather(*ways)
        except OSError:
            self.reset()
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            for out in (self._client_out, self._server_out):
                out.close()

    def reset(self) -> None:
        """End both sides at once, by RST where the transport can."""
        for out in (self._client_out, self._server_out):
            plug = out.get_extra_info("socket")
            if plug is not None and plug.family != socket.AF_UNIX:
                with contextlib.suppress(OSError):
                    plug.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            out.transport.abort()

    async def _up(self) -> None:
        """From the client to the server."""
        while piece := await self._client_in.read(PIECE_BYTES):
            await self._proxy.pass_on()
            snag = self._proxy.snag_for(piece)
            if snag == "reset":
                raise ConnectionResetError
            if snag == "cut_request":
                await _write(self._server_out, piece[: max(1, len(piece) // 2)])
                raise ConnectionResetError
            if snag is not None:
                self._on_answer = snag
            if self._proxy.heed and self._proxy.heed in piece:
                self._heeds = True
            await _write(self._server_out, piece)
        _end(self._server_out)

    async def _down(self) -> None:
        """From the server to the client."""
        while piece := await self._server_in.read(PIECE_BYTES):
            self._proxy.heeded += self._heeds
            self._heeds = False
            await self._proxy.pass_on()
            if self._on_answer == "half_close":
                _end(self._client_out)  # it may go on sending to us; what the server says is lost
                continue
            if self._on_answer == "cut_reply":
                await _write(self._client_out, piece[: len(piece) // 2])
            if self._on_answer is not None:
                raise ConnectionResetError
            await _write(self._client_out, piece)
        _end(self._client_out)


async def _write(out: asyncio.StreamWriter, data: bytes) -> None:
    out.write(data)
    await out.drain()


def _end(out: asyncio.StreamWriter) -> None:
    if out.can_write_eof() and not out.is_closing():
        out.write_eof()


def to_url(url: str) -> Callable[[], Awaitable[Pipe]]:
    """Opens connections to the host and port, or to the unix socket, of `url`."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return lambda: asyncio.open_unix_connection(parts.path)
    return lambda: asyncio.open_connection(parts.hostname, parts.port)
