"""Calls to a server that is written byte by byte, and the bytes it may say."""

from __future__ import annotations

import asyncio

from gristmill.contract.manifest import Timeouts
from gristmilld.config import EndpointConfig
from gristmilld.upstream.body import Body
from gristmilld.upstream.endpoint import Endpoint
from gristmilld.upstream.outcome import Answer, FailedCall
from tests.support.rawserver import CHAT_ANSWER, read_request, response

TEXT = Body([b'{"messages":[{"role":"user","content":"hello"}]}'])
QUICK = Timeouts(connect_s=5, first_byte_s=5, idle_s=5, total_s=10)

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
WHOLE = response(CHAT_ANSWER)


def endpoint_of(url: str) -> Endpoint:
    return Endpoint(EndpointConfig(name="mill", url=url))


async def send(client, server, body=TEXT, timeouts=QUICK, **options) -> Answer | FailedCall:
    return await client.send(endpoint_of(server.url), "/chat/completions", body, timeouts, **options)


async def failure(client, server, *args, **options) -> FailedCall:
    outcome = await send(client, server, *args, **options)
    assert isinstance(outcome, FailedCall)
    return outcome


async def good(client, server, *args, **options) -> Answer:
    outcome = await send(client, server, *args, **options)
    assert isinstance(outcome, Answer), outcome
    return outcome


def answering(*pieces: bytes, pause_s: float = 0.0):
    """A conversation that answers each request with `pieces`, sent one by one."""

    async def conversation(reader, writer, _number):
        while True:
            await read_request(reader)
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(pause_s)

    return conversation


def chunked(body: bytes, size: int, *, end: bytes = b"0\r\n\r\n", extension: bytes = b"") -> bytes:
    parts = [body[i : i + size] for i in range(0, len(body), size)]
    return b"".join(b"%x%b\r\n%b\r\n" % (len(p), extension, p) for p in parts) + end
