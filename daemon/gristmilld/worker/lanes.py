"""The slots of a worker: what runs in them, and the little that waits to take the next free one.

A slot that gets free takes the next request at once, without a trip to the store. So that there is one, the worker
claims as many requests ahead as it ends within `AHEAD_S`: with answers of seconds that is one request or none, with
answers of milliseconds it is what makes batches large. A request waits no longer ahead than another worker would need
to fetch it.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from gristmill.contract.frame import Request
from gristmill.queue.replies import Claimed
from gristmilld.worker.session import Session

AHEAD_S = 0.04
"""Requests that would begin later than this are left in the store."""
AHEAD_SLOTS = 2
"""And never more than so many for each slot, however quick the answers are."""
PACE_OVER_S = 0.05
"""The pace is measured over spans of at least this length."""


class Work(NamedTuple):
    """One claimed request of one job."""

    session: Session
    claimed: Claimed
    request: Request


class Lanes:
    """See the module's head.

    Args:
        slots: most requests that run at a time.
        run: runs one to its end, and never raises.

    Attributes:
        free: slots in which nothing runs.
        text_bytes: of the requests that run or wait here.
    """

    def __init__(self, slots: int, run: Callable[[Work], Awaitable[None]]) -> None:
        self.free = slots
        self.text_bytes = 0
        self._slots = slots
        self._run = run
        self._ready: deque[Work] = deque()
        self._tasks: dict[asyncio.Task[None], Work] = {}
        self._ended = 0
        self._measured_s = 0.0
        self._ahead = 0

    @property
    def in_flight(self) -> int:
        return len(self._tasks)

    @property
    def starved(self) -> bool:
        """Whether slots are free for want of requests."""
        return not self._ready and self.free > 0

    def add(self, works: Iterable[Work]) -> None:
        """Start these, or let them wait for a slot."""
        for work in works:
            self._ready.append(work)
            self.text_bytes += work.request.text_bytes
        while self.free and self._ready:
            self.free -= 1
            work = self._ready.popleft()
            task = asyncio.create_task(self._lane(work))
            self._tasks[task] = work
            task.add_done_callback(self._tasks.pop)

    def room(self, now_s: float) -> int:
        """How many requests are wanted now: free slots, and what will end soon."""
        span_s = now_s - self._measured_s
        if span_s >= PACE_OVER_S:
            self._ahead = min(AHEAD_SLOTS * self._slots, math.floor(self._ended / span_s * AHEAD_S))
            self._ended, self._measured_s = 0, now_s
        return self.free + self._ahead - len(self._ready)

    def take_back(self) -> list[Work]:
        """What has not begun; it is the caller's again."""
        works = list(self._ready)
        self._ready.clear()
        self.text_bytes -= sum(work.request.text_bytes for work in works)
        return works

    async def wait(self, timeout_s: float | None) -> None:
        """Return when all have ended, or after `timeout_s`."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)

    async def cancel(self) -> int:
        """End what runs, and wait until it has ended; how many there were."""
        count = len(self._tasks)
        for task in self._tasks:
            task.cancel()
        await self.wait(None)
        return count

    def abandon(self, session: Session) -> int:
        """End what runs of one job, without waiting for it: nobody wants its answers. How many there were."""
        tasks = [task for task, work in self._tasks.items() if work.session is session]
        for task in tasks:
            task.cancel()
        return len(tasks)

    async def _lane(self, work: Work) -> None:
        """Run `work`, then whatever waits; the slot is free when nothing does."""
        task = asyncio.current_task()
        assert task is not None
        while True:
            await self._run(work)
            self._ended += 1
            self.text_bytes -= work.request.text_bytes
            if not self._ready:
                break
            work = self._tasks[task] = self._ready.popleft()
        self.free += 1
