"""When a connection carries another call, and when it does not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.support.rawserver import CHAT_ANSWER, RawServer, read_request, response
from tests.support.wait import wait_until
from tests.support.wires import CHUNKED, WHOLE, answering, chunked, failure, good

from gristmill.contract.failure import FailureClass
from gristmilld.upstream.client import UpstreamClient


@pytest.fixture
async def client(open_client) -> AsyncIterator[UpstreamClient]:
    async with open_client(8) as opened:
        yield opened


@pytest.fixture
async def lean_client() -> AsyncIterator[UpstreamClient]:
    """For what aiohttp does otherwise: it reuses the oldest connection, and trusts bytes that nobody asked for."""
    async with UpstreamClient(8) as opened:
        yield opened


@pytest.mark.parametrize(
    ("answer", "reused"),
    [
        (WHOLE, True),
        (CHUNKED + chunked(CHAT_ANSWER, 7), True),
        (CHUNKED + chunked(CHAT_ANSWER, 7, extension=b";a=b", end=b"0\r\nx-sum: 1\r\ny: 2\r\n\r\n"), True),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + WHOLE, True),
        (WHOLE.replace(b"HTTP/1.1", b"HTTP/1.0").replace(b"\r\n\r\n", b"\r\nConnection: keep-alive\r\n\r\n"), True),
        (WHOLE.replace(b"HTTP/1.1", b"HTTP/1.0"), False),
        (response(CHAT_ANSWER, "200 OK", "Connection: close"), False),
        (response(CHAT_ANSWER, "200 OK", "CONNECTION: Keep-Alive, CLOSE"), False),
        (response(CHAT_ANSWER, "200", "set-cookie: a=1", "set-cookie: b=2", "X-Empty:"), True),
    ],
)
async def test_a_connection_is_used_again_when_the_server_keeps_it(client, answer, reused):
    """Every framing of an answer is read to its end, and the next call goes over the same connection or a new one."""
    async with RawServer(answering(answer)) as server:
        for _ in range(5):
            assert (await good(client, server)).body == CHAT_ANSWER
        assert server.connections == (1 if reused else 5)


async def test_an_answer_cut_anywhere_is_the_same_answer(client):
    """Head, lines between chunks and trailer come in as many pieces as the network likes."""
    whole = CHUNKED + chunked(CHAT_ANSWER, 30, end=b"0\r\nx: 1\r\n\r\n")
    cut = [0]

    async def conversation(reader, writer, _number):
        while True:
            await read_request(reader)
            for piece in (whole[: cut[0]], whole[cut[0] :]):
                writer.write(piece)
                await asyncio.sleep(0.001)

    async with RawServer(conversation) as server:
        for cut[0] in range(1, len(whole), 3):
            assert (await good(client, server)).body == CHAT_ANSWER
        assert server.connections == 1


async def test_the_connection_used_last_is_used_next(lean_client):
    """After a burst, single calls stay on one connection, so that the others can go."""
    numbers = []

    async def conversation(reader, writer, number):
        while True:
            await read_request(reader)
            numbers.append(number)
            await asyncio.sleep(0.02)
            writer.write(WHOLE)

    async with RawServer(conversation) as server:
        await asyncio.gather(*(good(lean_client, server) for _ in range(8)))
        assert server.connections == 8
        numbers.clear()
        for _ in range(4):
            await good(lean_client, server)
        assert len(set(numbers)) == 1
        assert server.connections == 8


async def test_an_idle_connection_is_not_kept_for_long(monkeypatch, open_client):
    """After its time it is closed from our side, without a call; the next call makes a new one."""
    monkeypatch.setattr("gristmilld.upstream.connections.KEEPALIVE_S", 0.05)
    monkeypatch.setattr("gristmilld.upstream.ordinary.KEEPALIVE_S", 0.05)
    ended = []

    async def conversation(reader, writer, number):
        await read_request(reader)
        writer.write(WHOLE)
        assert await reader.read() == b""
        ended.append(number)

    async with RawServer(conversation) as server, open_client(2) as client:
        await good(client, server)
        await wait_until(lambda: ended == [0], description="the idle connection has been closed")
        await good(client, server)
        assert server.connections == 2


@pytest.mark.parametrize("extra", [b"x", b"\r\n", WHOLE])
async def test_bytes_behind_an_answer_end_the_connection(lean_client, extra):
    """They belong to no request, so what comes after them can't be trusted either; the answer itself is good."""
    async with RawServer(answering(WHOLE + extra)) as server:
        for _ in range(3):
            assert (await good(lean_client, server)).body == CHAT_ANSWER
        assert server.connections == 3


async def test_bytes_on_an_idle_connection_end_it(lean_client):
    """What a server says unasked is never the answer to the next request."""

    async def conversation(reader, writer, number):
        await read_request(reader)
        writer.write(WHOLE)
        await writer.drain()
        await asyncio.sleep(0.02)
        if number == 0:
            writer.write(response(b'{"error":"idle"}', "408 Request Timeout"))
        await reader.read()

    async with RawServer(conversation) as server:
        await good(lean_client, server)
        await asyncio.sleep(0.08)  # the bytes are on their way to an idle client
        await good(lean_client, server)
        assert server.connections == 2


async def test_a_half_closed_connection_is_not_used_again(client):
    """The server has said that it will say no more."""

    async def conversation(reader, writer, _number):
        await read_request(reader)
        writer.write(WHOLE)
        writer.write_eof()
        await reader.read()

    async with RawServer(conversation) as server:
        for count in (1, 2, 3):
            await good(client, server)
            await asyncio.sleep(0.01)  # the end is on its way
            assert server.connections == count


async def test_a_half_close_in_place_of_an_answer_ends_the_call(client):
    """No answer can come any more, though the server still reads."""

    async def conversation(reader, writer, _number):
        await read_request(reader)
        writer.write_eof()
        await reader.read()

    async with RawServer(conversation) as server:
        seen = await failure(client, server)
    assert seen.cls is FailureClass.TRANSIENT
    assert seen.latency_ms < 2_000
