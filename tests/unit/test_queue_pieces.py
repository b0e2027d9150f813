"""What goes to the store and comes from it is copied as little as can be."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio.connection import Connection

from gristmill.queue.connection import LARGE_BYTES, PromptConnection
from gristmill.queue.pieces import HIGH_WATER_BYTES, in_pieces


class Transport:
    """Notes whether it is being read."""

    def __init__(self) -> None:
        self.reading = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


@pytest.fixture
async def reader() -> asyncio.StreamReader:
    made = asyncio.StreamReader()
    made.feed_data(b"early")
    in_pieces(made)
    return made


async def test_a_piece_is_not_copied(reader: asyncio.StreamReader) -> None:
    """The very object that came is read; what had come before and what came together is read in order."""
    piece = bytes(1000)
    assert await reader.read(3) == b"early"
    reader.feed_data(piece)
    assert await reader.read(3) is piece
    reader.feed_data(b"a")
    reader.feed_data(bytearray(b"b"))
    assert await reader.read(1) == b"ab"


async def test_a_reader_waits_for_data_and_sees_the_end(reader: asyncio.StreamReader) -> None:
    """As with any stream: what was there is read before the end, and an error is raised."""
    await reader.read()
    task = asyncio.ensure_future(reader.read())
    await asyncio.sleep(0)  # let it wait
    reader.feed_data(b"x")
    assert await task == b"x"
    reader.feed_data(b"last")
    reader.feed_eof()
    assert not reader.at_eof()
    assert await reader.read() == b"last"
    assert reader.at_eof()
    assert await reader.read() == b""
    reader.set_exception(ConnectionResetError())
    with pytest.raises(ConnectionResetError):
        await reader.read()


async def test_a_store_that_is_faster_than_its_reader_is_held_up(reader: asyncio.StreamReader) -> None:
    """Memory is bounded: beyond the mark nothing is read from the connection until what is there was taken."""
    transport = Transport()
    reader.set_transport(transport)
    reader.feed_data(bytes(HIGH_WATER_BYTES))
    assert not transport.reading
    assert len(await reader.read()) == HIGH_WATER_BYTES + len(b"early")
    assert transport.reading


def test_large_words_are_sent_from_where_they_lie() -> None:
    """The bytes are those of the client library; only what is small is put together."""
    large = [bytes([i]) * (LARGE_BYTES + i) for i in range(3)]
    commands = [("HSET", "k", "a", large[0], "b", b"small", "c", large[1]), ("PING",), ("SET", "x", large[2])]
    pieces = PromptConnection().pack_commands(commands)
    assert b"".join(pieces) == b"".join(Connection().pack_commands(commands))
    assert [piece for piece in pieces if len(piece) >= LARGE_BYTES] == large
    assert all(any(piece is word for piece in pieces) for word in large)
    assert len(PromptConnection().pack_commands([("PING",)] * 10)) == 1
