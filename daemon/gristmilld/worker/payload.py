"""From frames to bodies: brings a request's pictures together just before they are sent, and drops them once they are.

Pictures are what fills a worker's memory, so their bytes pass a gate: a request enters with the size of its pictures
and leaves when the last byte is on its way to the server, however long the answer takes. A thousand requests can be in
flight while the pictures of a few are in memory; one that is tried again brings its pictures once more.

Pictures that lie in the store are asked for together: all that the requests of one turn of the loop want go out in one
round trip, and hot ones are kept for a while, up to a number of bytes. Pictures by reference are read from the file,
beneath the roots that this daemon allows and without following a link out of them; a file that is not the one the
producer saw is the request's own failure.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from pathlib import Path

from gristmill.contract.digest import digest_of
from gristmill.contract.failure import Failure, FailureClass
from gristmill.contract.frame import Image, Request
from gristmill.paths import opened_path
from gristmill.queue import LeaseQueue
from gristmilld.upstream.body import Body

CACHE_BYTES = 64 << 20
Bytes = bytes | bytearray
_MOST_CACHED_BYTES = 2 << 20
_NOWAIT: int | None = getattr(os, "RWF_NOWAIT", None)
"""Linux: read what is in the cache, or fail at once."""
_OPENING = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
"""Without O_NONBLOCK a pipe in place of a picture would hold us up."""


class PayloadGoneError(Exception):
    """The store does not hold a picture of a frame that it holds: the run is damaged."""


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
        self._stored = _StoredPictures()
        self.gate = Gate(limit_bytes)

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


class _StoredPictures:
    """Pictures of payload runs: fetched in batches, the latest kept."""

    def __init__(self) -> None:
        self._cache: OrderedDict[tuple[str, int, str], bytes] = OrderedDict()
        self._cached_bytes = 0
        self._wanted: dict[tuple[LeaseQueue, int], dict[str, asyncio.Future[bytes]]] = {}
        self._fetches: set[asyncio.Task[None]] = set()

    async def get(self, queue: LeaseQueue, run: int, digest: str) -> bytes:
        """One picture.

        Raises:
            PayloadGoneError, or one of `OUTAGES`.
        """
        key = (queue.job, run, digest)
        data = self._cache.get(key)
        if data is not None:
            self._cache.move_to_end(key)
            return data
        return await asyncio.shield(self._want(queue, run, digest))

    def _want(self, queue: LeaseQueue, run: int, digest: str) -> asyncio.Future[bytes]:
        """The future of a picture; all that are wanted before the loop turns are fetched together."""
        loop = asyncio.get_running_loop()
        if (queue, run) not in self._wanted:
            self._wanted[queue, run] = {}
            loop.call_soon(self._start, queue, run)
        wanted = self._wanted[queue, run]
        if digest not in wanted:
            wanted[digest] = loop.create_future()
        return wanted[digest]

    def _start(self, queue: LeaseQueue, run: int) -> None:
        task = asyncio.get_running_loop().create_task(self._fetch(queue, run, self._wanted.pop((queue, run))))
        self._fetches.add(task)
        task.add_done_callback(self._fetches.discard)

    async def _fetch(self, queue: LeaseQueue, run: int, wanted: dict[str, asyncio.Future[bytes]]) -> None:
        try:
            pictures = await queue.fetch_images(run, list(wanted))
        except Exception as error:  # noqa: BLE001 - each waiter gets it, and decides
            for future in wanted.values():
                future.set_exception(error)
                future.exception()  # a waiter that has left meanwhile need not look
            return
        for (digest, future), data in zip(wanted.items(), pictures, strict=True):
            if data is None:
                future.set_exception(PayloadGoneError(f"picture {digest} of run {run}"))
                future.exception()
            else:
                self._keep((queue.job, run, digest), data)
                future.set_result(data)

    def _keep(self, key: tuple[str, int, str], data: bytes) -> None:
        self._cache[key] = data
        self._cached_bytes += len(data)
        while self._cached_bytes > CACHE_BYTES:
            _, dropped = self._cache.popitem(last=False)
            self._cached_bytes -= len(dropped)


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
