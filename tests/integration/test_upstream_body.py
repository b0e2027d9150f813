"""Bodies with pictures: what is sent is what was meant, byte for byte."""

from __future__ import annotations

import base64
import random
from collections.abc import AsyncIterator

import pytest
from tests.support.rawserver import CHAT_ANSWER, RawServer, read_request, response

from gristmill.contract.manifest import Timeouts
from gristmilld.config import EndpointConfig
from gristmilld.upstream.body import CHUNK_BYTES, WHOLE_BYTES, Body
from gristmilld.upstream.endpoint import Endpoint
from gristmilld.upstream.outcome import Answer

TIMEOUTS = Timeouts(connect_s=5, first_byte_s=10, idle_s=10, total_s=20)
RANDOM = random.Random(1)


class Sink(RawServer):
    """Keeps what it is sent."""

    def __init__(self) -> None:
        super().__init__(self._keep)
        self.bodies: list[bytes] = []
        self.heads: list[bytes] = []

    async def _keep(self, reader, writer, _number) -> None:
        while True:
            head, body = await read_request(reader)
            self.heads.append(head)
            self.bodies.append(body)
            writer.write(response(CHAT_ANSWER))
            await writer.drain()


@pytest.fixture
async def sink() -> AsyncIterator[Sink]:
    async with Sink() as server:
        yield server


def expected(pieces: list[bytes], images: list[bytes | bytearray | memoryview]) -> bytes:
    parts = [pieces[0]]
    for image, piece in zip(images, pieces[1:], strict=True):
        parts += [base64.b64encode(image), piece]
    return b"".join(parts)


CASES: list[tuple[list[bytes], list[bytes | bytearray | memoryview]]] = [
    ([b"{}"], []),
    ([b""], []),
    ([RANDOM.randbytes(WHOLE_BYTES)], []),
    ([RANDOM.randbytes(WHOLE_BYTES + 1)], []),
    ([RANDOM.randbytes(5 * WHOLE_BYTES + 7)], []),
    ([b"", b""], [b"x"]),
    ([b"{", b"}"], [b""]),
    *(([b"{", b",", b"}"], [RANDOM.randbytes(CHUNK_BYTES + d), RANDOM.randbytes(abs(d))]) for d in range(-2, 4)),
    ([b"a", b"b" * (WHOLE_BYTES + 5), b"", b"d"], [RANDOM.randbytes(3 * CHUNK_BYTES + 1), b"12", b"345"]),
    ([b"{", b"}"], [memoryview(RANDOM.randbytes(1000))[100:200]]),
    ([b"{", b"}"], [bytearray(b"abcdef")]),
]


async def test_every_cut_of_pieces_and_pictures_arrives_whole(sink, open_client):
    """With its exact length, at all sizes around the chunk, one after the other on one connection."""
    async with open_client(2) as client:
        endpoint = Endpoint(EndpointConfig(name="sink", url=sink.url))
        for pieces, images in CASES:
            body = Body(pieces, images)
            assert isinstance(await client.send(endpoint, "/chat/completions", body, TIMEOUTS), Answer)
            assert sink.bodies[-1] == expected(pieces, images)
            assert body.size == len(sink.bodies[-1])
    assert sink.connections == 1
    assert all(b"\r\nContent-Type: application/json\r\n" in head for head in sink.heads)


async def test_pictures_are_dropped_once_and_never_sent_without(sink, open_client):
    """Once on their way pictures are let go; what is left is never sent as if it were the request."""
    dropped = []
    async with open_client(1) as client:
        endpoint = Endpoint(EndpointConfig(name="sink", url=sink.url))
        with Body([b"{", b"}"], [b"abc"], lambda: dropped.append(1)) as body:
            await client.send(endpoint, "/chat/completions", body, TIMEOUTS)
            assert (body.images, dropped) == ([], [1])
            with pytest.raises(RuntimeError, match="already sent"):
                await client.send(endpoint, "/chat/completions", body, TIMEOUTS)
        assert dropped == [1]
        text = Body([b"{}"])
        for _ in range(2):
            assert isinstance(await client.send(endpoint, "/chat/completions", text, TIMEOUTS), Answer)
    assert sink.bodies == [b"{YWJj}", b"{}", b"{}"]


def test_pieces_and_pictures_must_match():
    """One more piece than pictures, or it is no body."""
    with pytest.raises(ValueError, match="2 pictures has 3 pieces, not 2"):
        Body([b"", b""], [b"", b""])


def test_a_body_shows_only_its_size():
    """Neither text nor picture is in its repr."""
    assert repr(Body([b"secret", b""], [b"abc"])) == "Body(10 bytes, 1 pictures)"
