"""One bounded look at a whole store: the jobs that fit the screen, who works on them, what they wait for.

A look costs the store one small script for each job that is shown, and a handful of plain commands. Jobs that have
ended are looked at less often, and so are daemons; how many other jobs there are costs nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable

import msgspec
from redis.asyncio import Redis

from gristmill.cli._jobs import without_the_dead
from gristmill.contract.frame import FormatError
from gristmill.contract.lifecycle import TERMINAL
from gristmill.contract.manifest import Manifest
from gristmill.queue import board, registry
from gristmill.queue.board import Board
from gristmill.queue.cluster import each_primary
from gristmill.queue.errors import JobNotFoundError
from gristmill.queue.leasequeue import LeaseQueue
from gristmill.queue.registry import DaemonInfo
from gristmill.queue.replies import JobSnapshot

ENDED_EVERY_S = 10.0
DAEMONS_EVERY_S = 3.0
AT_ONCE = 8
"""Calls to the store at a time."""


class Seen(msgspec.Struct, frozen=True):
    """One job."""

    snapshot: JobSnapshot
    manifest: Manifest


class Trouble(msgspec.Struct, frozen=True):
    """An endpoint that can't be called just now; `workers` say so, and it may be called again after `wait_s`."""

    pool: str
    endpoint: str
    state: str
    wait_s: float
    workers: int


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """What one look saw.

    Attributes:
        at_s: monotonic clock.
        wall_ms: wall clock of this machine.
        jobs: those that were to be shown, in their order.
        total: how many there are.
        daemons: the live ones.
        boards: what stands on the notice board of each pool that is shown.
        used_bytes, limit_bytes: the store's memory; 0 is no limit.
        trip_s: how long one call to the store took.
    """

    at_s: float
    wall_ms: int = 0
    jobs: list[Seen] = []
    total: int = 0
    daemons: list[DaemonInfo] = []
    boards: dict[str, Board] = {}
    used_bytes: int = 0
    limit_bytes: int = 0
    trip_s: float = 0.0

    @property
    def troubles(self) -> list[Trouble]:
        """Endpoints in trouble, each once for each pool; those that most workers complain of come first."""
        return sorted(
            (t for pool, seen in self.boards.items() for t in troubles(pool, seen)),
            key=lambda t: (-t.workers, t.pool, t.endpoint),
        )


def troubles(pool: str, seen: Board) -> Iterable[Trouble]:
    """What the board of one pool says, by endpoint and state. PURE."""
    counts = Counter((n.endpoint, n.state) for n in seen.notices)
    for (endpoint, state), workers in counts.items():
        until_ms = max(n.until_ms for n in seen.notices if (n.endpoint, n.state) == (endpoint, state))
        yield Trouble(pool, endpoint, state, max(0.0, (until_ms - seen.now_ms) / 1000), workers)


class _Known(msgspec.Struct):
    queue: LeaseQueue
    manifest: Manifest
    snapshot: JobSnapshot | None = None
    looked_s: float = float("-inf")

    def is_due(self, now_s: float) -> bool:
        ended = self.snapshot is not None and self.snapshot.state in TERMINAL
        return not ended or now_s - self.looked_s >= ENDED_EVERY_S


class Lookout:
    """The looks of one command; remembers which jobs it has attached to."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._known: dict[str, _Known] = {}
        self._daemons: list[DaemonInfo] = []
        self._daemons_s = float("-inf")
        self._few = asyncio.Semaphore(AT_ONCE)

    async def look(self, most: int) -> Overview:
        """Look at `most` jobs at most.

        Raises:
            One of `OUTAGES`.
        """
        begun_s = time.monotonic()
        memory = [await server.info("memory") for _, server in await each_primary(self._redis)]
        trip_s = (time.monotonic() - begun_s) / len(memory)
        limits = [int(one.get("maxmemory", 0)) for one in memory]
        ids, total = await registry.jobs_to_show(self._redis, most)
        found = await asyncio.gather(*(self._seen(job, begun_s) for job in ids))
        self._known = {job: known for job, known in self._known.items() if job in ids}
        if begun_s - self._daemons_s >= DAEMONS_EVERY_S:
            self._daemons, self._daemons_s = await registry.live_daemons(self._redis), begun_s
        jobs = [seen for seen in found if seen is not None]
        return Overview(
            at_s=time.monotonic(),
            wall_ms=time.time_ns() // 1_000_000,
            jobs=jobs,
            total=total,
            daemons=self._daemons,
            boards=await self._boards({s.manifest.pool for s in jobs if s.snapshot.state not in TERMINAL}),
            used_bytes=sum(int(one.get("used_memory", 0)) for one in memory),
            limit_bytes=sum(limits) if all(limits) else 0,
            trip_s=trip_s,
        )

    async def _seen(self, job: str, now_s: float) -> Seen | None:
        """The job as it stands, or as it stood when it has ended; None when it is not there (any more)."""
        async with self._few:
            try:
                known = self._known.get(job) or await self._attach(job)
                if known.snapshot is None or known.is_due(now_s):
                    known.snapshot, known.looked_s = await known.queue.snapshot(), now_s
            except (JobNotFoundError, FormatError, ValueError):
                self._known.pop(job, None)  # being made or removed, made anew, or of another version
                return None
        return Seen(without_the_dead(known.snapshot), known.manifest)

    async def _attach(self, job: str) -> _Known:
        queue = await LeaseQueue.attach(self._redis, job)
        self._known[job] = known = _Known(queue, await queue.manifest())
        return known

    async def _boards(self, pools: set[str]) -> dict[str, Board]:
        async def read(pool: str) -> Board:
            async with self._few:
                return await board.read(self._redis, pool)

        names = sorted(pools)
        return dict(zip(names, await asyncio.gather(*map(read, names)), strict=True))
