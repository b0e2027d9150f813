"""Looks at the store every few seconds, so that whoever asks this daemon is answered at once from the last look.

A look costs the store one small script for each job that is due, has a budget, and never waits longer than
`TIMEOUT_S` for a store that hangs. With very many jobs, those that no worker looks at are looked at less often.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError

from gristmill.contract.frame import FormatError
from gristmill.contract.lifecycle import TERMINAL
from gristmill.contract.manifest import Manifest
from gristmill.queue import board, feedstats, registry
from gristmill.queue.board import Board
from gristmill.queue.errors import JobNotFoundError, StoreError
from gristmill.queue.feedstats import FeedStats
from gristmill.queue.leasequeue import LeaseQueue
from gristmill.queue.registry import DaemonInfo
from gristmill.queue.replies import JobSnapshot
from gristmill.queue.store import OUTAGES, StoreInfo, check_store
from gristmill.queue.waiting import Scene, Wait, idle_s, waits_for
from gristmilld.clock import Clock, monotonic_s

log = logging.getLogger(__name__)

EVERY_S = 2.0
IDLE_EVERY_S = 10.0
"""How often a job is looked at that no worker works on."""
TIMEOUT_S = 2.0
BUDGET_S = 1.0
"""A look at jobs ends after this; the rest is due first next time."""
MOST_LOOKS = 500
_AWAY: tuple[type[Exception], ...] = (RedisError, *OUTAGES)


class About(msgspec.Struct, frozen=True):
    """What never changes of a job and is worth showing; `model` is None where requests name it themselves."""

    name: str
    model: str | None


class StoreView(msgspec.Struct, frozen=True, kw_only=True):
    """What the last look saw.

    Attributes:
        up: the store answered; else the rest is empty.
        trouble: why it does not answer, or why it is unfit; "" when all is well.
        info: of the store; None when it is unfit or away.
        look_s: how long the look took.
        daemons: ids of the registered ones.
        jobs: the last snapshot of each.
        abouts: what each is, by job.
        feeds: what feeders say of their work, by job.
        stalls: what jobs wait for of which nothing has finished for long, by job.
    """

    up: bool
    trouble: str = ""
    info: StoreInfo | None = None
    look_s: float = 0.0
    daemons: list[str] = []
    jobs: list[JobSnapshot] = []
    abouts: dict[str, About] = {}
    feeds: dict[str, FeedStats] = {}
    stalls: dict[str, Wait] = {}


class _Known(msgspec.Struct):
    """A job that is listed; without a queue it is one that can't be looked at."""

    due_s: float
    queue: LeaseQueue | None = None
    about: About | None = None
    snapshot: JobSnapshot | None = None


class StoreLook:
    """The looks of one process; `view` is the last one, None before the first.

    Args:
        redis: used by nothing else, with short time-outs.
        clock: monotonic.
        stalled_after_s: a job is stalled when nothing of it has finished for so long.
    """

    def __init__(self, redis: Redis, clock: Clock = monotonic_s, *, stalled_after_s: float = 120.0) -> None:
        self._stalled_after_s = stalled_after_s
        self._redis = redis
        self._clock = clock
        self._known: dict[str, _Known] = {}
        self.view: StoreView | None = None

    async def run(self) -> None:
        """Look every `EVERY_S` until cancelled."""
        while True:
            await self.once()
            await asyncio.sleep(EVERY_S)

    async def once(self) -> StoreView:
        """Look now; the new view."""
        begun_s = self._clock()
        before = self.view
        try:
            async with asyncio.timeout(TIMEOUT_S):
                self.view = await self._look(begun_s)
        except TimeoutError:
            self.view = StoreView(
                up=False, trouble=f"the store has not answered within {TIMEOUT_S:g} s", look_s=TIMEOUT_S
            )
        except _AWAY as error:
            trouble = f"the store does not answer ({type(error).__name__}); is it running, and is the URL right?"
            self.view = StoreView(up=False, trouble=trouble, look_s=self._clock() - begun_s)
        if self.view.trouble and (before is None or before.trouble != self.view.trouble):
            log.warning(self.view.trouble)
        return self.view

    async def _look(self, begun_s: float) -> StoreView:
        info, unfit = await self._fitness()
        await self._redis.ping()  # tells a store that is unfit from one that is away
        daemons = await registry.live_daemons(self._redis)
        jobs = await self._jobs(begun_s)
        feeds = await feedstats.read(self._redis, [job.job for job in jobs if job.feeder is not None])
        return StoreView(
            up=True,
            trouble=unfit,
            info=info,
            look_s=self._clock() - begun_s,
            daemons=[info.daemon_id for info in daemons],
            jobs=jobs,
            abouts={job.job: about for job in jobs if (about := self._known[job.job].about) is not None},
            feeds=feeds,
            stalls=await self._stalls(jobs, daemons, feeds, unfit),
        )

    async def _stalls(
        self, jobs: Sequence[JobSnapshot], daemons: Sequence[DaemonInfo], feeds: Mapping[str, FeedStats], unfit: str
    ) -> dict[str, Wait]:
        """What stalled jobs wait for; a board is read once for each pool that has any."""
        stalls: dict[str, Wait] = {}
        boards: dict[str, Board] = {}
        for job in jobs:
            if job.state in TERMINAL or idle_s(job) < self._stalled_after_s:
                continue
            if job.pool not in boards:
                boards[job.pool] = await board.read(self._redis, job.pool)
            scene = Scene(
                job=job,
                board=boards[job.pool],
                daemons=[info for info in daemons if info.pool == job.pool],
                feed=feeds.get(job.job),
                store=unfit,
            )
            wait = waits_for(scene)
            if wait is not None:
                stalls[job.job] = wait
        return stalls

    async def _fitness(self) -> tuple[StoreInfo | None, str]:
        try:
            return await check_store(self._redis), ""
        except StoreError as error:
            return None, str(error)

    async def _jobs(self, begun_s: float) -> list[JobSnapshot]:
        rows = [row.job for row in await registry.list_jobs(self._redis)]
        self._known = {job: self._known.get(job) or _Known(begun_s) for job in rows}
        runnable = set(await registry.runnable(self._redis))
        due = sorted((j for j in rows if self._known[j].due_s <= begun_s), key=lambda job: self._known[job].due_s)
        for job in due[:MOST_LOOKS]:
            if self._clock() - begun_s > BUDGET_S:
                break
            await self._look_at(job, self._known[job])
            self._known[job].due_s = begun_s + (0.0 if job in runnable else IDLE_EVERY_S)
        return [known.snapshot for known in self._known.values() if known.snapshot is not None]

    async def _look_at(self, job: str, known: _Known) -> None:
        known.snapshot = None
        try:
            if known.queue is None:
                queue = await LeaseQueue.attach(self._redis, job)
                known.about = _about(await queue.manifest())
                known.queue = queue
            known.snapshot = await known.queue.snapshot()
        except (JobNotFoundError, FormatError):
            known.queue = None  # being made, being removed, made anew, or of another version


def _about(manifest: Manifest) -> About:
    return About(manifest.name, manifest.model)
