"""Our reader of responses against aiohttp's, which is llhttp: where both take a response, it is the same response."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import closing

from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import HttpResponseParser
from hypothesis import event, example, given
from hypothesis import strategies as st

from gristmilld.upstream.wire import BrokenBodyError, NotHttpError, Reader, Reply

names = st.sampled_from(
    ["Content-Type", "x-request-id", "Server", "Set-Cookie", "Keep-Alive", "Connection", "Content-Length",
     "Transfer-Encoding", "Date", "X_y.z~"]
)  # fmt: skip
values = st.one_of(
    st.sampled_from(["close", "keep-alive", "chunked", "0", "2", "5", "12", "", "a b", "gzip"]),
    st.text(st.characters(min_codepoint=0x20, max_codepoint=0xFF, blacklist_characters="\x7f"), max_size=12),
)
bodies = st.binary(max_size=30)


@st.composite
def chunked(draw) -> bytes:
    parts = draw(st.lists(st.binary(min_size=1, max_size=20), max_size=4))
    ending = draw(st.sampled_from([b"0\r\n\r\n", b"00\r\nA: b\r\n\r\n", b"0\r\n"]))
    return b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in parts) + ending


@st.composite
def responses(draw) -> bytes:
    """Bytes that are mostly a response."""
    version = draw(st.sampled_from(["HTTP/1.1", "HTTP/1.1", "HTTP/1.0"]))
    status = draw(st.sampled_from(["200 OK", "200 OK", "200", "404 Not Found", "503 ", "204 No"]))
    lines = [f"{version} {status}"]
    lines += [f"{n}: {v}" for n, v in draw(st.lists(st.tuples(names, values), max_size=4))]
    body = draw(st.one_of(bodies, chunked()))
    framing = draw(st.sampled_from(["exact", "chunked", "none"]))
    if framing == "exact":
        lines.append(f"Content-Length: {len(body)}")
    elif framing == "chunked":
        lines.append("Transfer-Encoding: chunked")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


Outcome = tuple[int, bytes] | None


def ours(wire: bytes, cuts: list[int]) -> Outcome:
    reader = Reader(1 << 20)
    try:
        for piece in pieces(wire, cuts):
            reply = reader.feed(piece)
            if reply is not None:
                return reply.status, reply.body
        reply = reader.feed_end()
    except (NotHttpError, BrokenBodyError):
        return None
    return (reply.status, reply.body) if isinstance(reply, Reply) else None


def theirs(wire: bytes) -> Outcome:
    with closing(asyncio.new_event_loop()) as loop:
        parser = HttpResponseParser(BaseProtocol(loop, None), loop, 1 << 20, read_until_eof=True)
        try:
            messages, _, _ = parser.feed_data(wire)
            if not messages:
                return None
            message, payload = messages[0]
            if not payload.is_eof():
                parser.feed_eof()
        except (HttpProcessingError, ValueError):
            return None
        if payload.exception() is not None or not payload.is_eof():
            return None
        return message.code, payload.read_nowait() if payload.total_bytes else b""


def pieces(wire: bytes, cuts: list[int]) -> list[bytes]:
    at = sorted({0, len(wire), *(c % (len(wire) + 1) for c in cuts)})
    return [wire[a:b] for a, b in itertools.pairwise(at)]


@given(responses(), st.lists(st.integers(0, 400), max_size=6))
@example(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", [])
def test_two_readers_agree(wire, cuts):
    """What both read whole has the same status and body; how it was cut makes no difference to ours."""
    whole, cut, other = ours(wire, []), ours(wire, cuts), theirs(wire)
    assert whole == cut
    event(f"ours {whole is not None}, theirs {other is not None}")
    if whole is not None and other is not None:
        assert whole == other


@given(st.binary(max_size=60), st.binary(max_size=60), st.lists(st.integers(0, 200), max_size=4))
def test_noise_never_breaks_the_reader(head, body, cuts):
    """Whatever comes, the reader answers with a response, with none, or with its own errors."""
    ours(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\n" + body, cuts)
    ours(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body, cuts)
