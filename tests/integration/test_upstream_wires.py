"""Answers that come early, late, in pieces or never whole, and calls that are ended from our side."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator

import aiohttp
import pytest
from tests.support.rawserver import CHAT_ANSWER, RawServer, read_request, response
from tests.support.wait import wait_until
from tests.support.wires import CHUNKED, HEAD, QUICK, TEXT, WHOLE, answering, chunked, failure, good, send

from gristmill.contract.failure import FailureClass
from gristmill.contract.manifest import Timeouts
from gristmilld.config import EndpointConfig
from gristmilld.upstream.body import Body
from gristmilld.upstream.client import UpstreamClient
from gristmilld.upstream.endpoint import Endpoint
from gristmilld.upstream.outcome import Clock, FailedCall, Shape

C = FailureClass


@pytest.fixture
async def client(open_client) -> AsyncIterator[UpstreamClient]:
    async with open_client(8) as opened:
        yield opened


# -- answers that come early, late or never whole ---------------------------------------------------------------------


async def test_an_answer_before_the_request_was_sent_whole(client):
    """It is taken at once; the rest of the request is not sent, and the connection not used again."""
    taken = []

    async def conversation(reader, writer, _number):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(WHOLE)
        await writer.drain()
        await asyncio.sleep(0.1)
        size = 0
        while data := await reader.read(1 << 20):
            size += len(data)
        taken.append(size)

    picture = bytes(40 << 20)
    async with RawServer(conversation) as server:
        assert (await good(client, server, Body([b"{", b"}"], [picture]))).body == CHAT_ANSWER
        assert (await good(client, server)).body == CHAT_ANSWER
        assert server.connections == 2
        await wait_until(lambda: bool(taken), description="the first connection has ended")
    assert taken[0] < len(picture)


async def test_a_cut_while_the_request_is_sent(client):
    """A server that goes away under a large request costs an attempt; nothing hangs."""

    async def conversation(reader, writer, _number):
        await reader.readuntil(b"\r\n\r\n")
        reset(writer)

    async with RawServer(conversation) as server:
        seen = await failure(client, server, Body([b"{", b"}"], [bytes(20 << 20)]))
    assert seen.cls is C.TRANSIENT


def reset(writer: asyncio.StreamWriter) -> None:
    """End the connection with RST."""
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def test_the_total_clock_runs_while_the_request_is_sent(client):
    """A server that takes a large request slowly does not hold the slot longer than all may take."""

    async def conversation(reader, _writer, _number):
        while await reader.read(1 << 16):  # noqa: ASYNC110 - it is slow, not waiting
            await asyncio.sleep(0.02)

    async with RawServer(conversation) as server:
        body = Body([b"{", b"}"], [bytes(60 << 20)])
        seen = await failure(client, server, body, Timeouts(idle_s=5, first_byte_s=5, total_s=0.4))
    assert (seen.cls, seen.clock) == (C.TIMEOUT, Clock.TOTAL)
    assert 390 <= seen.latency_ms < 3_000


async def test_a_head_that_drips_meets_the_first_byte_clock(client):
    """A byte now and then does not hold the clock off: the head has to be whole."""

    async def conversation(reader, writer, _number):
        await read_request(reader)
        for byte in WHOLE:
            writer.write(bytes([byte]))
            await asyncio.sleep(0.02)

    async with RawServer(conversation) as server:
        seen = await failure(client, server, TEXT, Timeouts(first_byte_s=0.2, idle_s=5, total_s=5))
    assert (seen.cls, seen.clock, seen.first_byte_ms) == (C.TIMEOUT, Clock.FIRST_BYTE, None)
    assert 190 <= seen.latency_ms < 1_500


async def test_interim_answers_do_not_hold_off_the_first_byte_clock(client):
    """1xx is no answer."""

    async def conversation(reader, writer, _number):
        await read_request(reader)
        for _ in range(200):
            writer.write(b"HTTP/1.1 102 Processing\r\n\r\n")
            await asyncio.sleep(0.02)

    async with RawServer(conversation) as server:
        seen = await failure(client, server, TEXT, Timeouts(first_byte_s=0.2, idle_s=5, total_s=5))
    assert (seen.cls, seen.clock) == (C.TIMEOUT, Clock.FIRST_BYTE)


async def test_no_clock_runs_out_early(client):
    """An answer that stays within each clock is an answer, however close."""
    async with RawServer(answering(WHOLE[:40], WHOLE[40:150], WHOLE[150:], pause_s=0.12)) as server:
        await good(client, server, TEXT, Timeouts(first_byte_s=0.3, idle_s=0.3, total_s=0.6))


async def test_a_call_without_a_place_meets_the_connect_clock(open_client):
    """More calls than `concurrency` wait, no longer than a connection may take; the others are not harmed."""

    async def conversation(reader, writer, _number):
        await read_request(reader)
        await asyncio.sleep(0.5)
        writer.write(WHOLE)

    async with RawServer(conversation) as server, open_client(1) as client:
        first = asyncio.create_task(good(client, server))
        await wait_until(lambda: server.connections == 1, description="the first call is under way")
        seen = await failure(client, server, TEXT, Timeouts(connect_s=0.1))
        assert (seen.cls, seen.clock) == (C.TIMEOUT, Clock.CONNECT)
        await first


async def test_a_place_goes_to_the_call_that_still_waits(open_client):
    """Calls that were cancelled or ran out of time while they waited keep no place from the others."""
    let_go = asyncio.Event()

    async def conversation(reader, writer, _number):
        while True:
            await read_request(reader)
            await let_go.wait()
            writer.write(WHOLE)

    async with RawServer(conversation) as server, open_client(1) as client:
        first = asyncio.create_task(good(client, server))
        await wait_until(lambda: server.connections == 1, description="the first call is under way")
        late = asyncio.create_task(failure(client, server, TEXT, Timeouts(connect_s=0.1)))
        gone, third, fourth = (asyncio.create_task(good(client, server)) for _ in range(3))
        assert (await late).clock is Clock.CONNECT
        gone.cancel()
        let_go.set()
        await asyncio.gather(first, third, fourth)
        assert server.connections == 1
        await good(client, server)


@pytest.mark.parametrize("framing", ["length", "chunks", "end"])
async def test_a_large_answer_in_small_pieces(client, framing):
    """8 MB come whole, whatever says where they end."""
    text = json.dumps({"choices": [{"finish_reason": "stop", "message": {"content": "x" * (8 << 20)}}]}).encode()
    wire = {
        "length": response(text),
        "chunks": CHUNKED + chunked(text, 16_000),
        "end": HEAD + b"\r\n" + text,
    }[framing]

    async def conversation(reader, writer, _number):
        await read_request(reader)
        for start in range(0, len(wire), 16_500):
            writer.write(wire[start : start + 16_500])
            await writer.drain()

    async with RawServer(conversation) as server:
        assert (await good(client, server)).body == text


@pytest.mark.parametrize(
    "broken",
    [
        WHOLE[:-5],
        CHUNKED + chunked(CHAT_ANSWER, 9, end=b""),
        CHUNKED + chunked(CHAT_ANSWER, 9)[:-2],
        HEAD + b"Content-Length: 100\r\n\r\n",
    ],
)
@pytest.mark.parametrize("first", [True, False])
async def test_half_an_answer_is_none(client, broken, first):
    """Broken off costs an attempt, on a new connection and on a reused one."""

    async def conversation(reader, writer, _number):
        await read_request(reader)
        if not first:
            writer.write(WHOLE)
            await read_request(reader)
        writer.write(broken)

    async with RawServer(conversation) as server:
        if not first:
            await good(client, server)
        seen = await failure(client, server)
        assert (seen.cls, seen.message) == (C.TRANSIENT, "the answer broke off")
        assert seen.first_byte_ms is not None
        assert server.connections == 1


@pytest.mark.parametrize(
    "broken",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\n{}",
        b"HTTP/1.1 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n{}",
        CHUNKED + b"xyz\r\n",
        b"\x16\x03\x01\x02\x00",
        b"hello",
    ],
)
async def test_what_is_no_http_is_told_as_such(client, broken):
    """At once, not when the server closes."""
    async with RawServer(answering(broken)) as server:
        seen = await failure(client, server)
    assert seen.cls is C.TRANSIENT
    assert seen.shape is Shape.NOT_HTTP or seen.message == "the answer broke off"


async def test_an_answer_without_a_body(client):
    """204 has none, and the connection stays good."""
    async with RawServer(answering(b"HTTP/1.1 204 No Content\r\n\r\n")) as server:
        for _ in range(2):
            seen = await failure(client, server)
            assert (seen.cls, seen.status_code, seen.message) == (C.TRANSIENT, 204, "the answer is empty")
        assert server.connections == 1


# -- ends from our side -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before the head", "in the body", "in the request"])
async def test_a_cancelled_call_ends_its_connection(client, when):
    """Wherever it is; the answer to it can never meet another call."""
    state = []

    async def conversation(reader, writer, number):
        if number == 0:
            await reader.readuntil(b"\r\n\r\n")
            if when == "in the body":
                writer.write(WHOLE[:-5])
            state.append("begun")
            while await reader.read(1 if when == "in the request" else 1 << 20):  # noqa: ASYNC110 - slow
                await asyncio.sleep(0.01)
            state.append("ended")
        else:
            await read_request(reader)
            writer.write(WHOLE)

    body = Body([b"{", b"}"], [bytes(20 << 20)]) if when == "in the request" else TEXT
    async with RawServer(conversation) as server:
        call = asyncio.create_task(send(client, server, body))
        await wait_until(lambda: state == ["begun"], description="the call is under way")
        await asyncio.sleep(0.02)  # what the server wrote is on its way
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        if when != "in the request":  # there the server still has what the kernel had taken
            await wait_until(lambda: state == ["begun", "ended"], description="the server has noticed")
        await good(client, server)
        assert server.connections == 2


async def test_closing_the_client_ends_its_calls(open_client):
    """A call that is under way when the client is closed ends as a failure, and its connection with it."""
    ended = []

    async def conversation(reader, _writer, number):
        try:
            await read_request(reader)
            await reader.read()
        finally:
            ended.append(number)

    async with RawServer(conversation) as server:
        async with open_client(4) as client:
            calls = [asyncio.create_task(send(client, server)) for _ in range(4)]
            await wait_until(lambda: server.connections == 4, description="four calls are under way")
        outcomes = await asyncio.gather(*calls)
        assert all(isinstance(o, FailedCall) and o.cls is C.TRANSIENT for o in outcomes)
        await wait_until(lambda: len(ended) == server.connections, description="the server has noticed")


async def test_closing_the_client_ends_calls_that_wait():
    """A call that waits for its turn when the client is closed does not begin afterwards."""
    heads = []

    async def conversation(reader, _writer, _number):
        heads.append(await read_request(reader))
        await reader.read()

    async with RawServer(conversation) as server:
        async with UpstreamClient(1) as client:
            calls = [asyncio.create_task(send(client, server)) for _ in range(3)]
            await wait_until(lambda: len(heads) == 1, description="one call is under way")
        outcomes = await asyncio.gather(*calls)
    assert all(isinstance(o, FailedCall) and o.cls is C.TRANSIENT for o in outcomes)
    assert len(heads) == 1


async def test_the_lean_way_is_taken_unless_there_is_a_proxy_or_it_is_told(monkeypatch):
    """A call to a plain endpoint goes past aiohttp, which would cost four times as much."""

    async def taken(*_args, **_kwargs):
        raise aiohttp.ClientPayloadError

    monkeypatch.setattr(aiohttp.ClientSession, "_request", taken)
    async with RawServer(answering(WHOLE)) as server, UpstreamClient(2) as client:
        await good(client, server)
        await good(client, server, fresh=True)
        proxied = EndpointConfig(name="mill", url=server.url, proxy=server.url.removesuffix("/v1"))
        told = EndpointConfig(name="mill", url=server.url, aiohttp=True)
        for config in (proxied, told):
            outcome = await client.send(Endpoint(config), "/chat/completions", TEXT, QUICK)
            assert isinstance(outcome, FailedCall)
