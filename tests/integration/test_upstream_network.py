"""The client against a network that is wrong: no server, no name, no TLS, no HTTP, no manners."""

from __future__ import annotations

import asyncio
import gzip
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.rawserver import CHAT_ANSWER, RawServer, read_request, response

from gristmill.contract.failure import FailureClass
from gristmill.contract.manifest import Timeouts
from gristmilld.config import EndpointConfig
from gristmilld.upstream.body import Body
from gristmilld.upstream.client import UpstreamClient
from gristmilld.upstream.endpoint import Endpoint
from gristmilld.upstream.failures import looks_like_configuration
from gristmilld.upstream.outcome import Answer, Clock, FailedCall, Shape

C = FailureClass
CHAT = "/chat/completions"
TEXT = Body([b'{"messages":[{"role":"user","content":"hello"}]}'])
QUICK = Timeouts(connect_s=5, first_byte_s=5, idle_s=5, total_s=10)


@pytest.fixture
async def client(open_client) -> AsyncIterator[UpstreamClient]:
    async with open_client(8) as opened:
        yield opened


async def send(client, url, body=TEXT, timeouts=QUICK, **settings) -> Answer | FailedCall:
    endpoint = Endpoint(EndpointConfig(name="mill", url=url, **settings))
    return await client.send(endpoint, CHAT, body, timeouts)


async def failure(client, url, *args, **settings) -> FailedCall:
    outcome = await send(client, url, *args, **settings)
    assert isinstance(outcome, FailedCall)
    return outcome


@pytest.fixture
def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


async def test_nobody_listens(client, free_port):
    """A refused connect means that the endpoint is down, which costs no attempt."""
    seen = await failure(client, f"http://127.0.0.1:{free_port}/v1")
    assert (seen.cls, seen.rule.costs_attempt) == (C.ENDPOINT_DOWN, False)
    assert "refused" in seen.message


async def test_a_name_that_does_not_exist(client):
    """DNS failures mean down; for the first requests, a name is worth a look at its spelling."""
    seen = await failure(client, "http://no-such-host.invalid/v1")
    assert (seen.cls, seen.shape) == (C.ENDPOINT_DOWN, Shape.DNS)
    assert "resolved" in (looks_like_configuration(seen) or "")


async def test_a_connect_that_takes_too_long(client):
    """A listener that accepts nobody more: the connect clock, by name."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        waiting = [socket.socket() for _ in range(4)]
        for s in waiting:
            s.setblocking(False)
            s.connect_ex(("127.0.0.1", port))
        seen = await failure(client, f"http://127.0.0.1:{port}/v1", TEXT, Timeouts(connect_s=0.2))
        for s in waiting:
            s.close()
    assert (seen.cls, seen.clock) == (C.TIMEOUT, Clock.CONNECT)


async def test_a_server_that_speaks_something_else(client):
    """Bytes that are no HTTP are told as such."""

    async def ssh(_reader, writer, _number):
        writer.write(b"SSH-2.0-OpenSSH_9.6\r\n")
        await writer.drain()

    async with RawServer(ssh) as server:
        seen = await failure(client, server.url)
    assert (seen.cls, seen.shape) == (C.TRANSIENT, Shape.NOT_HTTP)
    assert "port" in (looks_like_configuration(seen) or "")


async def test_the_headers_are_exactly_ours(client):
    """One head, no automatic headers but host and length, so none that differs by version or environment."""
    heads = []

    async def once(reader, writer, _number):
        heads.append((await read_request(reader))[0])
        writer.write(response(CHAT_ANSWER))
        await writer.drain()

    async with RawServer(once) as server:
        assert isinstance(await send(client, server.url), Answer)
    names = [line.split(b":")[0].lower() for line in heads[0].split(b"\r\n")[1:] if line]
    assert sorted(names) == [b"content-length", b"content-type", b"host", b"user-agent"]
    assert heads[0].startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")


async def test_an_answer_over_several_lines_is_kept_on_one(client):
    """Pretty-printed answers lose their line breaks and nothing else."""

    async def pretty(reader, writer, _number):
        await read_request(reader)
        writer.write(response(CHAT_ANSWER.replace(b",", b",\r\n  ")))
        await writer.drain()

    async with RawServer(pretty) as server:
        answer = await send(client, server.url)
    assert isinstance(answer, Answer)
    assert answer.body.count(b"\n") == answer.body.count(b"\r") == 0


async def test_bytes_that_are_no_utf8_are_no_answer(client):
    """A body that only looks like JSON would break the output's readers."""

    async def latin(reader, writer, _number):
        await read_request(reader)
        writer.write(response(CHAT_ANSWER.replace(b"hi", b"h\xe9")))
        await writer.drain()

    async with RawServer(latin) as server:
        seen = await failure(client, server.url)
    assert seen.cls is C.TRANSIENT
    assert seen.body is not None
    seen.body.decode()


async def test_a_compressed_bomb_is_capped(open_client):
    """What counts against the cap is what it unpacks to."""
    bomb = gzip.compress(b" " * (8 << 20) + CHAT_ANSWER)

    async def compressed(reader, writer, _number):
        await read_request(reader)
        writer.write(response(bomb, "200 OK", "Content-Encoding: gzip"))
        await writer.drain()

    async with RawServer(compressed) as server, open_client(1, max_body_bytes=1 << 20) as client:
        assert (await failure(client, server.url)).cls is C.BAD_REQUEST


async def test_an_early_refusal_of_a_large_body_is_heard(client):
    """A proxy that answers 413 before it has read the body, and reads no more, is understood."""

    async def proxy(reader, writer, _number):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(response(b"<html>413 Request Entity Too Large</html>", "413 Too Large", "Connection: close"))
        await writer.drain()
        await asyncio.sleep(0.2)  # lingers, as nginx does, before it closes

    async with RawServer(proxy) as server:
        body = Body([b'{"x":"', b'"}'], [bytes(3 << 20)])
        seen = await failure(client, server.url, body)
    assert (seen.cls, seen.status_code) == (C.CONTEXT_LENGTH, 413)


async def test_a_server_that_stops_reading_the_request(client):
    """The idle clock runs for the request's way up too."""

    async def deaf(reader, _writer, _number):
        await reader.readuntil(b"\r\n\r\n")
        reader._transport.pause_reading()
        await asyncio.sleep(5)

    async with RawServer(deaf) as server:
        body = Body([b'{"x":"', b'"}'], [bytes(30 << 20)])
        seen = await failure(client, server.url, body, Timeouts(idle_s=0.3, first_byte_s=5, total_s=5))
    assert (seen.cls, seen.clock) == (C.TIMEOUT, Clock.IDLE)
    assert "request" in seen.message


async def test_a_connection_that_dies_late_was_at_work(client, monkeypatch):
    """A reused connection that ends long after the request was sent is no stale one: the server had taken it up."""
    monkeypatch.setattr("gristmilld.upstream.exceptions.STALE_WITHIN_S", 0.05)

    async def dies(reader, writer, _number):
        await read_request(reader)
        writer.write(response(CHAT_ANSWER))
        await read_request(reader)
        await asyncio.sleep(0.2)

    async with RawServer(dies) as server:
        endpoint = Endpoint(EndpointConfig(name="mill", url=server.url))
        assert isinstance(await client.send(endpoint, CHAT, TEXT, QUICK), Answer)
        seen = await client.send(endpoint, CHAT, TEXT, QUICK)
    assert isinstance(seen, FailedCall)
    assert seen.cls is C.TRANSIENT
    assert server.connections == 1


async def test_half_a_response_head_is_no_stale_connection(client):
    """Once a byte of the response has come, the server had taken the request up."""

    async def half(reader, writer, _number):
        await read_request(reader)
        writer.write(response(CHAT_ANSWER))
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-")
        await writer.drain()

    async with RawServer(half) as server:
        endpoint = Endpoint(EndpointConfig(name="mill", url=server.url))
        assert isinstance(await client.send(endpoint, CHAT, TEXT, QUICK), Answer)
        seen = await client.send(endpoint, CHAT, TEXT, QUICK)
    assert isinstance(seen, FailedCall)
    assert seen.cls is C.TRANSIENT


async def test_a_proxy_is_used_when_told_and_only_then(client, free_port, monkeypatch):
    """The environment's proxy is ignored; the configured one carries the call; one that is down is named."""
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port}")
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_port}")
    lines = []

    async def proxy(reader, writer, _number):
        lines.append((await read_request(reader))[0].split(b"\r\n")[0])
        writer.write(response(CHAT_ANSWER))
        await writer.drain()

    async with RawServer(proxy) as server:
        assert isinstance(await send(client, server.url), Answer)
        via = server.url.removesuffix("/v1")
        assert isinstance(await send(client, "http://model.invalid/v1", proxy=via), Answer)
    assert lines[1] == b"POST http://model.invalid/v1/chat/completions HTTP/1.1"
    seen = await failure(client, "http://model.invalid/v1", proxy=f"http://127.0.0.1:{free_port}")
    assert (seen.cls, seen.shape) == (C.ENDPOINT_DOWN, Shape.PROXY)


async def test_no_more_files_is_named(client, monkeypatch):
    """EMFILE is not "connection error": the message says what to raise or lower."""

    def exhausted(*_args, **_kwargs):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(socket, "socket", exhausted)
    seen = await failure(client, "http://127.0.0.1:9/v1")
    monkeypatch.undo()
    assert (seen.cls, seen.shape) == (C.CONFIG_ERROR, Shape.FILES)
    assert "ulimit" in seen.message


# -- TLS -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> Path:
    """A self-signed certificate for 127.0.0.1, with its key in the same file."""
    folder = tmp_path_factory.mktemp("tls")
    pem, key = folder / "cert.pem", folder / "key.pem"
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    argv += ["-keyout", str(key), "-out", str(pem), "-days", "2", "-subj", "/CN=127.0.0.1"]
    argv += ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(argv, check=True, capture_output=True)
    both = folder / "both.pem"
    both.write_text(pem.read_text() + key.read_text())
    return both


@pytest.fixture
async def secure(certificate) -> AsyncIterator[RawServer]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    async def once(reader, writer, _number):
        await read_request(reader)
        writer.write(response(CHAT_ANSWER))
        await writer.drain()

    async with RawServer(once, tls=context) as server:
        yield server


async def test_an_unknown_certificate_is_a_wrong_setup(client, secure):
    """Not a retry: the advice is to give the certificate."""
    seen = await failure(client, secure.url)
    assert (seen.cls, seen.shape) == (C.CONFIG_ERROR, Shape.TLS)
    assert "ca_file" in seen.message


async def test_a_private_certificate_can_be_trusted(client, secure, certificate):
    """By ca_file, or by not looking."""
    assert isinstance(await send(client, secure.url, ca_file=str(certificate)), Answer)
    assert isinstance(await send(client, secure.url, insecure=True), Answer)


async def test_a_secure_connection_is_used_again(client, certificate):
    """Large requests and answers go over one TLS connection, one after the other."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    text = b'{"choices":[{"finish_reason":"stop"}],"x":"' + b"x" * 3_000_000 + b'"}'
    sizes = []

    async def conversation(reader, writer, _number):
        while True:
            sizes.append(len((await read_request(reader))[1]))
            writer.write(response(text))
            await writer.drain()

    async with RawServer(conversation, tls=context) as server:
        endpoint = Endpoint(EndpointConfig(name="mill", url=server.url, ca_file=str(certificate)))
        for _ in range(3):
            answer = await client.send(endpoint, CHAT, Body([b"{", b"}"], [bytes(3_000_000)]), QUICK)
            assert isinstance(answer, Answer)
            assert answer.body == text
        assert (server.connections, sizes) == (1, [4_000_002] * 3)


async def test_https_to_a_plain_server_is_a_wrong_setup(client):
    """A server without TLS answers the handshake with anything but TLS."""

    async def plain(reader, writer, _number):
        await reader.read(10)
        writer.write(response(b"{}", "400 Bad Request"))
        await writer.drain()

    async with RawServer(plain) as server:
        seen = await failure(client, server.url.replace("http:", "https:"))
    assert (seen.cls, seen.shape) == (C.CONFIG_ERROR, Shape.TLS)


async def test_a_handshake_that_is_cut_means_down(client):
    """A server that restarts behind its port is not a wrong setup."""

    async def gone(reader, _writer, _number):
        await reader.read(10)

    async with RawServer(gone) as server:
        seen = await failure(client, server.url.replace("http:", "https:"))
    assert seen.cls is C.ENDPOINT_DOWN
