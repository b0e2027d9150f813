"""From a name to a connection: one lookup, every address tried, the next call over another one."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator

import pytest
from tests.support.rawserver import CHAT_ANSWER, RawServer, read_request, response
from tests.support.wait import wait_until

from gristmill.contract.failure import FailureClass
from gristmill.contract.manifest import Timeouts
from gristmilld.config import EndpointConfig
from gristmilld.upstream.body import Body
from gristmilld.upstream.client import UpstreamClient
from gristmilld.upstream.endpoint import Endpoint
from gristmilld.upstream.outcome import Answer, Clock, FailedCall, Shape

TEXT = Body([b'{"messages":[]}'])
QUICK = Timeouts(connect_s=5, first_byte_s=5, idle_s=5, total_s=10)


class Names:
    """Stands in for the system's lookup: every name has `addresses`; `asked` are the names that were looked up."""

    def __init__(self) -> None:
        self.real = asyncio.get_running_loop().getaddrinfo
        self.addresses = ["127.0.0.1"]
        self.asked: list[str] = []
        self.answering = asyncio.Event()
        self.answering.set()

    async def look_up(self, host, port, **options):
        if host[0].isdigit():  # uvloop looks at an address again before it connects
            return await self.real(host, port, **options)
        self.asked.append(host)
        await self.answering.wait()
        if not self.addresses:
            raise socket.gaierror(-2, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (a, port)) for a in self.addresses]


@pytest.fixture
async def names(monkeypatch) -> Names:
    names = Names()
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", names.look_up, raising=False)
    return names


@pytest.fixture
async def client() -> AsyncIterator[UpstreamClient]:
    async with UpstreamClient(16) as opened:
        yield opened


class Listener(RawServer):
    """Listens on every address of the loopback; `called` counts the calls by address."""

    def __init__(self) -> None:
        super().__init__(self._answer)
        self.called: Counter[str] = Counter()
        self.heads: list[bytes] = []

    async def _answer(self, reader, writer, _number) -> None:
        head, _ = await read_request(reader)
        self.heads.append(head)
        self.called[writer.get_extra_info("sockname")[0]] += 1
        await asyncio.sleep(0.02)
        writer.write(response(CHAT_ANSWER))


async def send(client, url, timeouts=QUICK, **options) -> Answer | FailedCall:
    endpoint = Endpoint(EndpointConfig(name="mill", url=url))
    return await client.send(endpoint, "/chat/completions", TEXT, timeouts, **options)


@pytest.fixture
async def listener() -> AsyncIterator[Listener]:
    async with Listener() as server:
        server.url = server.url.replace("127.0.0.1", "mill.test")
        yield server


async def test_a_name_is_looked_up_once_for_many_calls(client, names, listener):
    """Sixteen calls at once ask once, and later ones not at all."""
    outcomes = await asyncio.gather(*(send(client, listener.url) for _ in range(16)))
    outcomes += [await send(client, listener.url, fresh=True) for _ in range(3)]
    assert all(isinstance(o, Answer) for o in outcomes)
    assert names.asked == ["mill.test"]
    assert listener.connections >= 16
    assert all(b"\r\nHost: mill.test:" in head for head in listener.heads)


async def test_an_old_lookup_is_made_again(client, names, listener, monkeypatch):
    """Servers move."""
    monkeypatch.setattr("gristmilld.upstream.dial.DNS_TTL_S", 0.0)
    for _ in range(2):
        assert isinstance(await send(client, listener.url, fresh=True), Answer)
    assert names.asked == ["mill.test"] * 2


async def test_an_address_that_cannot_be_reached_is_passed_over(client, names, listener):
    """The others of the name serve; each is the first to be tried in its turn."""
    names.addresses = ["127.0.0.7", "127.0.0.1", "127.0.0.8"]
    for _ in range(6):
        assert isinstance(await send(client, listener.url, fresh=True), Answer)
    assert names.asked == ["mill.test"]


async def test_connections_are_spread_over_the_addresses_of_a_name(client, names):
    """A name with three servers behind it gives each its share."""
    names.addresses = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
    server = Listener()
    listening = await asyncio.start_server(server._serve, "0.0.0.0", 0)
    url = f"http://mill.test:{listening.sockets[0].getsockname()[1]}/v1"
    for _ in range(6):
        assert isinstance(await send(client, url, fresh=True), Answer)
    listening.close()
    assert server.called == {"127.0.0.1": 2, "127.0.0.2": 2, "127.0.0.3": 2}


async def test_a_name_is_looked_up_again_when_nobody_answers(client, names, listener):
    """A server that came back at another address is found at once, not after the lookup's time."""
    names.addresses = ["127.0.0.7"]
    seen = await send(client, listener.url)
    assert isinstance(seen, FailedCall)
    assert seen.cls is FailureClass.ENDPOINT_DOWN
    names.addresses = ["127.0.0.1"]
    assert isinstance(await send(client, listener.url), Answer)
    assert names.asked == ["mill.test"] * 2


async def test_a_failed_lookup_is_not_remembered(client, names, listener):
    """The next call asks again."""
    names.addresses = []
    seen = await send(client, listener.url)
    assert isinstance(seen, FailedCall)
    assert (seen.cls, seen.shape) == (FailureClass.ENDPOINT_DOWN, Shape.DNS)
    names.addresses = ["127.0.0.1"]
    assert isinstance(await send(client, listener.url), Answer)


async def test_a_lookup_that_takes_long_meets_the_connect_clock(client, names, listener):
    """It goes on for the calls to come; its failure is nobody's any more, and no warning."""
    names.addresses = []
    names.answering.clear()
    seen = await send(client, listener.url, Timeouts(connect_s=0.05))
    assert isinstance(seen, FailedCall)
    assert (seen.cls, seen.clock) == (FailureClass.TIMEOUT, Clock.CONNECT)
    names.answering.set()
    await asyncio.sleep(0.01)  # the lookup fails, with nobody waiting
    names.addresses = ["127.0.0.1"]
    assert isinstance(await send(client, listener.url), Answer)


async def test_a_call_cancelled_while_connecting_leaves_its_place(names, listener):
    """Its place among the calls is free for the next."""
    names.answering.clear()
    async with UpstreamClient(1) as client:
        call = asyncio.create_task(send(client, listener.url))
        await wait_until(lambda: bool(names.asked), description="the lookup is under way")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        names.answering.set()
        assert isinstance(await send(client, listener.url), Answer)


async def test_an_address_in_brackets(client):
    """IPv6 has its brackets in the URL and in the Host header, and nowhere else."""
    heads = []

    async def answer(reader, writer):
        heads.append((await read_request(reader))[0])
        writer.write(response(CHAT_ANSWER))
        writer.close()

    try:
        server = await asyncio.start_server(answer, "::1", 0)
    except OSError:
        pytest.skip("this machine has no IPv6")
    port = server.sockets[0].getsockname()[1]
    assert isinstance(await send(client, f"http://[::1]:{port}/v1"), Answer)
    server.close()
    assert f"\r\nHost: [::1]:{port}\r\n".encode() in heads[0]


async def test_a_path_cannot_add_a_header(client, listener, names):
    """What a job says as the path of a call stays in the first line."""
    endpoint = Endpoint(EndpointConfig(name="mill", url=listener.url))
    path = "/chat/completions?a=b c\r\nX-Evil: 1\r\n\r\n"
    assert isinstance(await client.send(endpoint, path, TEXT, QUICK), Answer)
    lines = listener.heads[0].split(b"\r\n")
    assert lines[0].startswith(b"POST /v1/chat/completions?a=b")
    assert not [line for line in lines[1:] if b"Evil" in line]
