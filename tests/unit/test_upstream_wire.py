"""Reading responses from bytes: what is taken, what is refused, and what a connection may do afterwards."""

from __future__ import annotations

import gzip
import zlib

import pytest

from gristmilld.upstream.wire import BrokenBodyError, NotHttpError, Reader, Reply, TooLargeError

CAP = 10_000
OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


def read(wire: bytes, step: int | None = None, *, end: bool = False) -> tuple[Reply | None, Reader]:
    """The response in `wire`, given in pieces of `step` bytes."""
    reader = Reader(CAP)
    reply = None
    for start in range(0, len(wire), step or max(1, len(wire))):
        assert reply is None, "nothing is given to a reader behind a whole response"
        reply = reader.feed(wire[start : start + (step or len(wire))])
    return (reader.feed_end() if end and reply is None else reply), reader


def body_of(wire: bytes, step: int | None = None, *, end: bool = False) -> bytes:
    reply, _ = read(wire, step, end=end)
    assert reply is not None
    return reply.body


STEPS = [None, 1, 2, 3, 7]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    ("wire", "body", "reusable"),
    [
        (OK + b"Content-Length: 2\r\n\r\n{}", b"{}", True),
        (OK + b"content-LENGTH:2 \t\r\n\r\n{}", b"{}", True),
        (OK + b"Content-Length: 0\r\n\r\n", b"", True),
        (b"HTTP/1.1 200\nContent-Length: 2\n\n{}", b"{}", True),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}", b"{}", False),
        (b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 2\r\n\r\n{}", b"{}", True),
        (OK + b"Connection: upgrade, close\r\nContent-Length: 2\r\n\r\n{}", b"{}", False),
        (OK + b"Connection: x\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}", b"{}", False),
        (CHUNKED + b"1\r\n{\r\n1 ;x\r\n}\r\n0\r\n\r\n", b"{}", True),
        (CHUNKED + b'0002;x="y"\r\n{}\r\n000\r\nA: b\r\nC: d\r\n\r\n', b"{}", True),
        (CHUNKED + b"2\n{}\n0\n\n", b"{}", True),
        (OK + b"Transfer-Encoding: Chunked\r\nContent-Length: 9\r\n\r\n2\r\n{}\r\n0\r\n\r\n", b"{}", False),
        (b"HTTP/1.1 204 No\r\nContent-Length: 9\r\n\r\n", b"", True),
        (b"HTTP/1.1 304 No\r\nTransfer-Encoding: chunked\r\n\r\n", b"", True),
        (b"HTTP/1.1 100 C\r\n\r\nHTTP/1.1 102 P\r\nA: b\r\n\r\n" + OK + b"Content-Length: 2\r\n\r\n{}", b"{}", True),
        (b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n", b"", False),
    ],
)
def test_every_framing_in_every_cut(wire, body, reusable, step):
    """The body is the same however the bytes come, and the connection as good as the server says."""
    reply, reader = read(wire, step)
    assert reply is not None
    assert (reply.body, reader.reusable) == (body, reusable)


@pytest.mark.parametrize("step", STEPS)
def test_a_body_may_end_with_the_connection(step):
    """Without a length it is whole when the connection ends in order, and never before."""
    wire = OK + b"\r\n{}"
    reply, reader = read(wire, step)
    assert reply is None
    assert not reader.reusable
    assert body_of(wire, step, end=True) == b"{}"
    for short in (OK, OK + b"Content-Length: 3\r\n\r\n{}", CHUNKED + b"2\r\n{}\r\n", b""):
        assert read(short, step, end=True)[0] is None


@pytest.mark.parametrize(
    "wire",
    [
        b"SSH-2.0-x\r\n",
        b"\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1  200 OK\r\n\r\n",
        OK + b"No colon\r\n\r\n",
        OK + b"A : b\r\n\r\n",
        OK + b" folded: b\r\n\r\n",
        OK + b"A: b\0c\r\n\r\n",
        OK + b"A: b\rc\r\n\r\n",
        OK + b": b\r\n\r\n",
        OK + b"A: " + b"x" * (1 << 16),
        OK + b"Content-Length: +2\r\n\r\n{}",
        OK + b"Content-Length: 2, 2\r\n\r\n{}",
        OK + b"Content-Length:\r\n\r\n{}",
        OK + b"Content-Length: " + b"9" * 16 + b"\r\n\r\n{}",
        OK + "Content-Length: ²\r\n\r\n{}".encode("latin-1"),
        OK + b"Content-Length: 2\r\nContent-length: 2\r\n\r\n{}",
        OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        CHUNKED + b"\r\n",
        CHUNKED + b"-2\r\n{}",
        CHUNKED + b"0x2\r\n{}",
        CHUNKED + b"2\r\n{}x",
        CHUNKED + b"2\r\n{}\rx",
        CHUNKED + b"2;" + b"x" * 5000,
        CHUNKED + b"1" * 16 + b"\r\n",
        CHUNKED + b"0\r\n" + b"a: " + b"x" * 5000,
    ],
)
@pytest.mark.parametrize("step", [None, 1, 100])
def test_what_cannot_be_read_safely_is_refused(wire, step):
    """At the latest with its last byte, not when the connection ends."""
    with pytest.raises(NotHttpError):
        read(wire, step)


@pytest.mark.parametrize("step", [None, 5000])
@pytest.mark.parametrize(
    "wire",
    [
        OK + b"Content-Length: 10001\r\n\r\n",
        OK + b"\r\n" + b"x" * 10_001,
        CHUNKED + b"2710\r\n" + b"x" * 10_000 + b"\r\n1\r\nx",
        OK + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(z := gzip.compress(bytes(10_001))) + z,
    ],
)
def test_a_body_above_the_cap_is_refused(wire, step):
    """As soon as it is seen to be, and with its status."""
    with pytest.raises(TooLargeError) as caught:
        read(wire, step)
    assert caught.value.status == 200


RAW = zlib.compressobj(wbits=-zlib.MAX_WBITS)


@pytest.mark.parametrize("step", [None, 3])
@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        (b"gzip", gzip.compress(b"{}" * 99)),
        (b"x-gzip", gzip.compress(b"{}" * 50) + gzip.compress(b"{}" * 49) + bytes(8)),
        (b"GZIP", gzip.compress(b"{}" * 99)),
        (b"deflate", zlib.compress(b"{}" * 99)),
        (b"deflate", RAW.compress(b"{}" * 99) + RAW.flush()),
        (b"identity", b"{}" * 99),
    ],
)
def test_a_body_packed_unasked_is_unpacked(encoding, packed, step):
    """By the two encodings that servers use; nobody asked for them."""
    wire = OK + b"Content-Encoding: %b\r\nContent-Length: %d\r\n\r\n" % (encoding, len(packed)) + packed
    assert body_of(wire, step) == b"{}" * 99


@pytest.mark.parametrize("packed", [b"{}", gzip.compress(b"{}")[:-3], gzip.compress(b"{}") + b"x"])
def test_a_body_that_cannot_be_unpacked_is_broken(packed):
    """Damaged or cut."""
    with pytest.raises(BrokenBodyError):
        read(OK + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed) + packed)


def test_headers_have_one_value_each():
    """Names in lower case; of a repeated header the first counts, but lists are joined."""
    reply, _ = read(OK + b"Retry-After: 1\r\nX-Id:  a b \r\nretry-after: 2\r\nContent-Length: 0\r\n\r\n")
    assert reply is not None
    assert (reply.status, reply.headers) == (200, {"retry-after": "1", "x-id": "a b", "content-length": "0"})


@pytest.mark.parametrize("extra", [b"x", b"\r\n", OK])
@pytest.mark.parametrize("wire", [OK + b"Content-Length: 2\r\n\r\n{}", CHUNKED + b"2\r\n{}\r\n0\r\n\r\n"])
def test_bytes_behind_a_response_make_the_connection_useless(wire, extra):
    """The response is good; they are not kept for the next."""
    reply, reader = read(wire + extra)
    assert reply is not None
    assert (reply.body, reader.reusable) == (b"{}", False)


@pytest.mark.parametrize("step", STEPS)
def test_a_reader_reads_one_response_after_the_other(step):
    """Nothing of one is left in the next, whatever its framing."""
    reader = Reader(CAP)
    wires = [
        CHUNKED + b"2\r\n{}\r\n0\r\n\r\n",
        OK + b"Content-Length: 3\r\n\r\n{ }",
        b"HTTP/1.1 500 X\r\nA: b\r\nContent-Length: 0\r\n\r\n",
    ]
    for wire, expected in zip(wires * 2, [(200, b"{}"), (200, b"{ }"), (500, b"")] * 2, strict=True):
        replies = [reader.feed(wire[i : i + (step or len(wire))]) for i in range(0, len(wire), step or len(wire))]
        assert replies[:-1] == [None] * (len(replies) - 1)
        assert (replies[-1].status, replies[-1].body) == expected
        assert (reader.status, reader.begun, reader.reusable) == (0, False, True)


def test_many_interim_responses_are_skipped():
    """Also when they come at once."""
    assert body_of(b"HTTP/1.1 102 P\r\n\r\n" * 5000 + OK + b"Content-Length: 2\r\n\r\n{}") == b"{}"


def test_no_body_in_a_repr():
    """A reply can be logged."""
    reply, _ = read(OK + b"Content-Length: 6\r\n\r\nsecret")
    assert repr(reply) == "Reply(200, 6 bytes)"
