"""The body of a call: bytes with places for pictures, which become base64 only while they are sent.

A picture is read and kept as raw bytes, a quarter less than its base64, and the base64 of at most `CHUNK_BYTES` of it
exists at a time. The length is known before, so the body goes out with a Content-Length. A body without pictures, and
not large, is sent as one piece of bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

import pybase64

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

CHUNK_BYTES = 3 << 17
"""A multiple of 3, so that the base64 of the chunks is the base64 of the whole."""
WHOLE_BYTES = 1 << 18
"""Bodies without pictures up to this size are sent in one go."""


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
        self.images: list[memoryview] = []
        self.size = len(pieces[0])
        if images:
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

    def whole(self) -> bytes | None:
        """The body in one piece, or None for one that is to be sent in `parts`.

        Raises:
            RuntimeError: the pictures were dropped; what is left is not the request.
        """
        if len(self.images) + 1 != len(self.pieces):
            raise RuntimeError(f"a body of {self.size} bytes was already sent: make it again")
        return self.pieces[0] if not self.images and self.size <= WHOLE_BYTES else None

    def parts(self) -> Iterator[bytes | memoryview]:
        """The body in parts of at most `WHOLE_BYTES`, in order; each picture's base64 is made as it is asked for."""
        for i, image in enumerate(self.images):
            yield from _slices(self.pieces[i])
            for start in range(0, len(image), CHUNK_BYTES):
                yield pybase64.b64encode(image[start : start + CHUNK_BYTES])
        yield from _slices(self.pieces[-1])


def _slices(piece: bytes) -> Iterator[bytes | memoryview]:
    if len(piece) <= WHOLE_BYTES:
        if piece:
            yield piece
        return
    view = memoryview(piece)
    for start in range(0, len(view), WHOLE_BYTES):
        yield view[start : start + WHOLE_BYTES]
