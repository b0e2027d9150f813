"""The pictures that lie in the store: fetched in batches, and kept for a while.

A trip to the store costs about as much as everything else that is done for a picture. So all that the requests of one
turn of the loop want come in one trip for each run, and with them what was claimed of the same run and will be wanted
next, up to a number of bytes. Lines beside each other often share a picture; those used last are kept, up to a number
of bytes as well.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from gristmill.queue import LeaseQueue

CACHE_BYTES = 64 << 20
ALONG_BYTES = 4 << 20
"""Most bytes that come along unasked with a batch."""
_EXPECTED_RUNS = 64
"""Requests can be taken back, or end unsent; what was expected of older runs is forgotten."""

_Run = tuple[LeaseQueue, int]
_Key = tuple[str, int, str]
"""Job, run and digest."""


class PayloadGoneError(Exception):
    """The store does not hold a picture of a frame that it holds: the run is damaged."""


class StoredPictures:
    """See the module's head; for one loop."""

    def __init__(self) -> None:
        self._cache: OrderedDict[_Key, bytes] = OrderedDict()
        self._cached_bytes = 0
        self._coming: dict[_Key, asyncio.Future[bytes]] = {}
        self._wanted: dict[_Run, dict[str, asyncio.Future[bytes]]] = {}
        self._expected: OrderedDict[_Run, dict[str, int]] = OrderedDict()
        self._fetches: set[asyncio.Task[None]] = set()

    def expect(self, queue: LeaseQueue, run: int, digest: str, size: int) -> None:
        """A picture of so many bytes will be wanted soon."""
        self._expected.setdefault((queue, run), {})[digest] = size
        self._expected.move_to_end((queue, run))
        if len(self._expected) > _EXPECTED_RUNS:
            self._expected.popitem(last=False)

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
        return await asyncio.shield(self._coming.get(key) or self._want(queue, run, digest))

    def _want(self, queue: LeaseQueue, run: int, digest: str) -> asyncio.Future[bytes]:
        """The future of a picture; all that are wanted before the loop turns are fetched together."""
        loop = asyncio.get_running_loop()
        if (queue, run) not in self._wanted:
            self._wanted[queue, run] = {}
            loop.call_soon(self._start, queue, run)
        future = loop.create_future()
        self._coming[queue.job, run, digest] = self._wanted[queue, run][digest] = future
        return future

    def _start(self, queue: LeaseQueue, run: int) -> None:
        self._take_along(queue, run)
        task = asyncio.get_running_loop().create_task(self._fetch(queue, run, self._wanted.pop((queue, run))))
        self._fetches.add(task)
        task.add_done_callback(self._fetches.discard)

    def _take_along(self, queue: LeaseQueue, run: int) -> None:
        """Want what is expected of this run, too."""
        expected = self._expected.pop((queue, run), {})
        room = ALONG_BYTES
        while expected:
            digest, size = expected.popitem()
            key = (queue.job, run, digest)
            if key in self._cache or key in self._coming:
                continue
            if size > room:
                expected[digest] = size
                self._expected[queue, run] = expected
                return
            room -= size
            self._want(queue, run, digest)

    async def _fetch(self, queue: LeaseQueue, run: int, wanted: dict[str, asyncio.Future[bytes]]) -> None:
        try:
            pictures: list[bytes | None] | Exception = await queue.fetch_images(run, list(wanted))
        except Exception as error:  # noqa: BLE001 - each waiter gets it, and decides
            pictures = error
        for place, (digest, future) in enumerate(wanted.items()):
            key = (queue.job, run, digest)
            del self._coming[key]
            found = pictures if isinstance(pictures, Exception) else pictures[place]
            if isinstance(found, bytes):
                self._keep(key, found)
                future.set_result(found)
            else:
                future.set_exception(found or PayloadGoneError(f"picture {digest} of run {run}"))
                future.exception()  # a waiter that has left meanwhile need not look

    def _keep(self, key: _Key, data: bytes) -> None:
        self._cache[key] = data
        self._cached_bytes += len(data)
        while self._cached_bytes > CACHE_BYTES:
            _, dropped = self._cache.popitem(last=False)
            self._cached_bytes -= len(dropped)
