"""From frames to bodies: decodes what was claimed and brings its pictures together.

Pictures that lie in the store are fetched once per run and kept, up to a number of bytes, for the requests that share
them. Pictures by reference are read from the file, beneath the roots that this daemon allows and without following a
link out of them; a file that is not the one the producer saw is the request's own failure.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path

from gristmill.contract.failure import Failure, FailureClass
from gristmill.contract.frame import Image, Request
from gristmill.queue.leasequeue import LeaseQueue
from gristmilld.upstream.body import Body

CACHE_BYTES = 64 << 20


class PayloadGoneError(Exception):
    """The store does not hold a picture of a frame that it holds: the run is damaged."""


class Payloads:
    """Makes bodies; one for a worker process.

    Args:
        allowed_roots: folders beneath which pictures may be read by reference.
    """

    def __init__(self, allowed_roots: Iterable[str]) -> None:
        self._roots = [Path(root).resolve() for root in allowed_roots]
        self._cache: OrderedDict[tuple[str, int, str], bytes] = OrderedDict()
        self._cached_bytes = 0

    async def prefetch(self, queue: LeaseQueue, wanted: dict[int, set[str]]) -> None:
        """Bring the pictures of runs from the store into the cache, one round trip a run."""
        for run, shas in wanted.items():
            missing = [sha for sha in shas if (queue.job, run, sha) not in self._cache]
            for sha, data in zip(missing, await queue.fetch_images(run, missing) if missing else (), strict=True):
                if data is not None:
                    self._keep((queue.job, run, sha), data)

    async def body(self, queue: LeaseQueue, run: int, request: Request) -> Body | Failure:
        """The body of `request`, or why one of its pictures cannot be sent.

        Raises:
            PayloadGoneError: a picture that should lie in the store does not.
        """
        if not request.images:
            return Body(request.pieces)
        images: list[bytes] = []
        for image in request.images:
            data = await self._read(image) if image.path is not None else await self._stored(queue, run, image)
            if isinstance(data, Failure):
                return data
            images.append(data)
        return Body(request.pieces, images)

    async def _stored(self, queue: LeaseQueue, run: int, image: Image) -> bytes:
        key = (queue.job, run, image.sha)
        data = self._cache.get(key)
        if data is not None:
            self._cache.move_to_end(key)
            return data
        [fetched] = await queue.fetch_images(run, [image.sha])
        if fetched is None:
            raise PayloadGoneError(f"picture {image.sha} of run {run}")
        return fetched

    async def _read(self, image: Image) -> bytes | Failure:
        assert image.path is not None
        return await asyncio.get_running_loop().run_in_executor(None, read_reference, image, self._roots)

    def _keep(self, key: tuple[str, int, str], data: bytes) -> None:
        self._cache[key] = data
        self._cached_bytes += len(data)
        while self._cached_bytes > CACHE_BYTES and len(self._cache) > 1:
            _, dropped = self._cache.popitem(last=False)
            self._cached_bytes -= len(dropped)


def read_reference(image: Image, roots: Sequence[Path]) -> bytes | Failure:
    """The bytes of a picture by reference, or why they are not what the producer saw."""
    assert image.path is not None
    path = Path(image.path)
    real = Path(os.path.realpath(path))
    if not any(real.is_relative_to(root) for root in roots):
        return _bad(image, "lies beneath no root that this daemon allows (allowed_roots)")
    try:
        with real.open("rb") as file:
            seen = os.fstat(file.fileno())
            data = file.read(image.size + 1)
    except OSError as error:
        return _bad(image, f"can't be read any more: {error.strerror}")
    if len(data) != image.size:
        return _bad(image, "has another size than when it was submitted")
    if seen.st_mtime_ns != image.mtime_ns and hashlib.sha256(data).hexdigest()[: len(image.sha)] != image.sha:
        return _bad(image, "has changed since it was submitted")
    return data


def _bad(image: Image, what: str) -> Failure:
    return Failure(FailureClass.BAD_INPUT, f"picture {image.path} {what}")


def wanted_images(requests: Iterable[tuple[int, Request]]) -> dict[int, set[str]]:
    """Which pictures of which runs lie in the store and are needed for `requests` (run, request)."""
    wanted: dict[int, set[str]] = {}
    for run, request in requests:
        for image in request.images:
            if image.path is None:
                wanted.setdefault(run, set()).add(image.sha)
    return wanted
