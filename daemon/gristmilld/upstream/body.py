"""The body of a call: bytes with places for pictures, which become base64 only while they are sent.

A picture is read and kept as raw bytes, a quarter less than its base64, and the base64 of at most `CHUNK_BYTES` of it
exists at a time. The length is known before, so the body goes out with a Content-Length. A body without pictures, and
not large, is sent as one piece of bytes, which is what aiohttp does fastest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

import pybase64
from aiohttp import Payload
from aiohttp.abc import AbstractStreamWriter

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

CHUNK_BYTES = 3 << 16
"""A multiple of 3, so that the base64 of the chunks is the base64 of the whole."""
WHOLE_BYTES = 1 << 18
"""Bodies without pictures up to this size are sent in one go."""


class UploadStalledError(TimeoutError):
    """The server took nothing of the body for the time that the idle clock allows."""


class Body:
    """One request's body: ``pieces[0] + b64(images[0]) + pieces[1] + ... + pieces[-1]``.

    A body without pictures can be sent many times. One with pictures is sent once: they are dropped as soon as they
    are on their way, for the answer may take minutes. As a context it drops them at the latest when it is left.

    Attributes:
        size: bytes as they will be sent.
        on_drop: called once, when the pictures are dropped.
    """

    __slots__ = ("images", "on_drop", "pieces", "size")

    def __init__(
        self,
        pieces: Sequence[bytes],
        images: Sequence[ReadableBuffer] = (),
        on_drop: Callable[[], None] | None = None,
    ) -> None:
        if len(pieces) != len(images) + 1:
            raise ValueError(f"a body of {len(images)} pictures has {len(images) + 1} pieces, not {len(pieces)}")
        self.pieces = pieces
        self.images = [memoryview(i).cast("B") for i in images]
        self.size = sum(map(len, pieces)) + sum((len(i) + 2) // 3 * 4 for i in self.images)
        self.on_drop = on_drop

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.drop()

    def drop(self) -> None:
        """Let go of the pictures; a second call is fine."""
        self.images = []
        on_drop, self.on_drop = self.on_drop, None
        if on_drop is not None:
            on_drop()

    def __repr__(self) -> str:
        return f"Body({self.size} bytes, {len(self.images)} pictures)"

    def payload(self, idle_s: float) -> bytes | Payload:
        """What aiohttp is to send; `idle_s` bounds each wait for the server to take more.

        Raises:
            RuntimeError: the pictures were dropped; what is left is not the request.
        """
        if len(self.images) + 1 != len(self.pieces):
            raise RuntimeError(f"a body of {self.size} bytes was already sent: make it again")
        if not self.images and self.size <= WHOLE_BYTES:
            return self.pieces[0]
        return _PieceWise(self, idle_s)


class _PieceWise(Payload):
    """Sends a `Body` in bounded chunks."""

    def __init__(self, body: Body, idle_s: float) -> None:
        super().__init__(body, content_type="application/json")
        self._size = body.size
        self._idle_s = idle_s

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Bodies are never shown, so there is no text of it."""
        raise TypeError("a request body is not decoded")

    async def write(self, writer: AbstractStreamWriter) -> None:
        await self.write_with_length(writer, None)

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        """Write it all; `content_length` is always our own size.

        Raises:
            UploadStalledError: the server took nothing for `idle_s`.
        """
        body: Body = self._value
        for i, piece in enumerate(body.pieces[:-1]):
            await self._write_plain(writer, piece)
            image = body.images[i]
            for start in range(0, len(image), CHUNK_BYTES):
                await self._write_chunk(writer, pybase64.b64encode(image[start : start + CHUNK_BYTES]))
            del image
        await self._write_plain(writer, body.pieces[-1])
        body.drop()

    async def _write_plain(self, writer: AbstractStreamWriter, piece: bytes) -> None:
        if len(piece) <= WHOLE_BYTES:
            await self._write_chunk(writer, piece)
            return
        view = memoryview(piece)
        for start in range(0, len(view), WHOLE_BYTES):
            await self._write_chunk(writer, view[start : start + WHOLE_BYTES])

    async def _write_chunk(self, writer: AbstractStreamWriter, chunk: bytes | memoryview) -> None:
        if not chunk:
            return
        try:
            async with asyncio.timeout(self._idle_s):
                await writer.write(chunk)
        except TimeoutError:
            raise UploadStalledError from None
