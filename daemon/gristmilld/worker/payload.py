"""From frames to bodies: brings a request's pictures together just before they are sent, and drops them once they are.

Pictures are what fills a worker's memory, so their bytes pass a gate: a request enters with the size of its pictures
and leaves when the last byte is on its way to the server, however long the answer takes. A thousand requests can be in
flight while the pictures of a few are in memory; one that is tried again brings its pictures once more.

Pictures that lie in the store are fetched in batches, see `gristmilld.worker.stored`. Pictures by reference are read
from the file, beneath the roots that this daemon allows and without following a link out of them; a file that is not
the one the producer saw is the request's own failure.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path

from gristmill.contract.digest import digest_of
from gristmill.contract.failure import Failure, FailureClass
from gristmill.contract.frame import Image, Request
from gristmill.paths import opened_path
from gristmill.queue import LeaseQueue
from gristmilld.upstream.body import Body
from gristmilld.worker.stored import StoredPictures

Bytes = bytes | bytearray
_MOST_CACHED_BYTES = 2 << 20
_NOWAIT: int | None = getattr(os, "RWF_NOWAIT", None)
"""Linux: read what is in the cache, or fail at once."""
_OPENING = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
"""Without O_NONBLOCK a pipe in place of a picture would hold us up."""


class Gate:
    """Lets bytes in up to a limit, first come first served; something larger than the limit goes in alone."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.inside_bytes = 0

    async def enter(self, size: int) -> None:
        """Wait until there is room for `size` bytes and take it."""
        if not self._waiting and self._fits(size):
            self.inside_bytes += size
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave(size)
            raise

    def leave(self, size: int) -> None:
        """Give back what `enter` took."""
        self.inside_bytes -= size
        while self._waiting:
            wanted, turn = self._waiting[0]
            if not turn.cancelled():
                if not self._fits(wanted):
                    return
                self.inside_bytes += wanted
                turn.set_result(None)
            self._waiting.popleft()

    def _fits(self, size: int) -> bool:
        return self.inside_bytes == 0 or self.inside_bytes + size <= self._limit


class Payloads:
    """Makes bodies; one for a worker process.

    Args:
        allowed_roots: folders beneath which pictures may be read by reference.
        limit_bytes: most bytes of pictures that are in memory on their way out.
    """

    def __init__(self, allowed_roots: Iterable[str], limit_bytes: int) -> None:
        self._roots = [Path(root).resolve() for root in allowed_roots]
        self._prefixes = tuple(str(root).rstrip("/") + "/" for root in self._roots)
        self._stored = StoredPictures()
        self.gate = Gate(limit_bytes)

    def expect(self, queue: LeaseQueue, run: int, request: Request) -> None:
        """`request` was claimed, and its body will be wanted soon."""
        for image in request.images:
            if image.path is None:
                self._stored.expect(queue, run, image.digest, image.size)

    async def body(self, queue: LeaseQueue, run: int, request: Request) -> Body | Failure:
        """The body of `request`, or why one of its pictures cannot be sent. Use it as a context, and once.

        Raises:
            PayloadGoneError: a picture that should lie in the store does not.
            One of `OUTAGES`.
        """
        if not request.images:
            return Body(request.pieces)
        size = sum(image.size for image in request.images)
        await self.gate.enter(size)
        try:
            pictures = await self._pictures(queue, run, request.images)
        except BaseException:
            self.gate.leave(size)
            raise
        if isinstance(pictures, Failure):
            self.gate.leave(size)
            return pictures
        return Body(request.pieces, pictures, on_drop=lambda: self.gate.leave(size))

    async def _pictures(
        self, queue: LeaseQueue, run: int, images: Sequence[Image]
    ) -> list[bytes | bytearray] | Failure:
        loop = asyncio.get_running_loop()
        pictures: list[Bytes] = []
        for image in images:
            data: Bytes | Failure | None
            if image.path is None:
                data = await self._stored.get(queue, run, image.digest)
            else:
                data = read_cached(image, self._prefixes)
                if data is None:
                    data = await loop.run_in_executor(None, read_reference, image, self._roots)
            if isinstance(data, Failure):
                return data
            pictures.append(data)
        return pictures


def read_cached(image: Image, prefixes: tuple[str, ...]) -> bytearray | None:
    """The bytes of a picture by reference when its file lies in the kernel's cache and is what the producer saw.

    None sends the caller the long way, through a thread: reading might block, or there is something to say. A trip
    through a thread costs more than such a read, and must be taken where a disk or another host answers.

    Args:
        prefixes: of paths beneath the allowed roots.
    """
    path = image.path
    assert path is not None
    if _NOWAIT is None or image.size > _MOST_CACHED_BYTES or not path.startswith(prefixes):
        return None
    try:
        fd = os.open(path, _OPENING)
    except OSError:
        return None
    data = bytearray(image.size + 1)
    try:
        whole = (
            opened_path(fd) == path  # else a link led elsewhere, perhaps out of the roots
            and os.preadv(fd, [data], 0, _NOWAIT) == image.size
            and _is_as_seen(image, os.fstat(fd))
        )
    except OSError:
        return None
    finally:
        os.close(fd)
    del data[image.size :]
    return data if whole else None


def read_reference(image: Image, roots: Sequence[Path]) -> bytes | Failure:
    """The bytes of a picture by reference, or why they are not what the producer saw."""
    assert image.path is not None
    real = Path(os.path.realpath(image.path))
    if not any(real.is_relative_to(root) for root in roots):
        return _bad(image, "lies beneath no root that this daemon allows (allowed_roots)")
    try:
        with os.fdopen(os.open(real, _OPENING), "rb") as file:
            before = os.fstat(file.fileno())
            if not stat.S_ISREG(before.st_mode):
                return _bad(image, "is no regular file any more")
            data = file.read(image.size + 1)
            after = os.fstat(file.fileno())
    except OSError as error:
        return _bad(image, f"can't be read any more: {error.strerror}")
    if len(data) != image.size:
        return _bad(image, "has another size than when it was submitted")
    as_seen = _is_as_seen(image, before) and _is_as_seen(image, after)
    if not as_seen and digest_of(data) != image.digest:
        return _bad(image, "has changed since it was submitted")
    return data


def _is_as_seen(image: Image, status: os.stat_result) -> bool:
    """Whether a file is the one that the producer hashed, by all that changes with its bytes or when it is replaced."""
    seen = image.mtime_ns, image.ctime_ns, image.inode
    return (status.st_mtime_ns, status.st_ctime_ns, status.st_ino) == seen


def _bad(image: Image, what: str) -> Failure:
    return Failure(FailureClass.BAD_INPUT, f"picture {image.path} {what}")
