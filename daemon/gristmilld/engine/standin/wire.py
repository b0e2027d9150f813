"""The ways in which the stand-in breaks HTTP: written to the transport by hand, since a well-behaved server cannot."""

from __future__ import annotations

import asyncio
import socket
import struct

from aiohttp import web


def ok_head(size: int) -> bytes:
    """The head of a 200 that announces `size` bytes of JSON."""
    return (
        f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {size}\r\nConnection: close\r\n\r\n"
    ).encode()


def end(transport: asyncio.Transport | None) -> None:
    """End the connection as a server that closes it does: FIN."""
    if transport is not None:
        transport.close()


def reset(transport: asyncio.Transport | None) -> None:
    """End the connection as a server that dies does: RST."""
    if transport is None:
        return
    sock = transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


async def halves(request: web.BaseRequest, body: bytes, pause_s: float | None) -> None:
    """Send half of `body`; end there, or pause and send the rest."""
    transport = request.transport
    if transport is None:
        return
    middle = len(body) // 2
    transport.write(ok_head(len(body)) + body[:middle])
    if pause_s is not None:
        await asyncio.sleep(pause_s)
        if not transport.is_closing():
            transport.write(body[middle:])
    transport.close()
