"""Brings what jobs wish before the control plane, again and again until our own state says that it is done.

Each round looks at the jobs of ``gm:due``, asks `wanting` what each of their wishes needs, and enqueues that. Every
daemon does so; two that see the same enqueue the same attempt, which RQ takes once. A *sweep* looks at all jobs, less
often, and announces what a producer that died had not.

Feeding and exporting need files, so a daemon brings only those up that lie beneath its own allowed roots.
"""

from __future__ import annotations

import asyncio
import logging

from redis.asyncio import Redis
from redis.exceptions import RedisError

from gristmill.contract.frame import FormatError
from gristmill.contract.manifest import Manifest
from gristmill.holders import is_dead_here
from gristmill.queue import registry, wishes
from gristmill.queue.errors import JobNotFoundError
from gristmill.queue.leasequeue import LeaseQueue
from gristmill.queue.replies import JobSnapshot, Lease
from gristmill.queue.wishes import Progress, Wish
from gristmilld.clock import Clock
from gristmilld.control.roots import Roots
from gristmilld.control.rqdesk import RqDesk, job_id
from gristmilld.control.wanting import Sight, Standing, is_due, is_open, next_attempt
from gristmilld.logs import fields

log = logging.getLogger(__name__)


class Reconciler:
    """See the module's head.

    Args:
        redis: the store.
        desk: RQ's queues, perhaps in another store.
        roots: folders that this daemon may read inputs from and write results to.
        clock: monotonic.
    """

    def __init__(self, redis: Redis, desk: RqDesk, roots: Roots, clock: Clock) -> None:
        self._redis = redis
        self._desk = desk
        self._roots = roots
        self._clock = clock
        self._loose_since_s: dict[str, float] = {}
        self._tidy: set[str] = set()
        self._desk_is_well = True

    async def round(self) -> None:
        """Look once at every job with an open wish.

        Raises:
            RedisError, OSError: the store is in trouble.
        """
        due = await wishes.due(self._redis)
        seen: set[str] = set()
        for job in due:
            try:
                seen |= await self._look_after(await LeaseQueue.attach(self._redis, job))
            except JobNotFoundError:
                await wishes.withdraw(self._redis, job)
            except FormatError as error:
                log.debug("job %s is left alone: %s", job, error)
        self._loose_since_s = {rq_id: since_s for rq_id, since_s in self._loose_since_s.items() if rq_id in seen}

    async def _look_after(self, queue: LeaseQueue) -> set[str]:
        """Bring up what the job needs; the ids of its attempts that were looked at."""
        manifest, snapshot = await queue.manifest(), await queue.snapshot()
        progress = await wishes.progress(self._redis, queue.job)
        open_ = [wish for wish in Wish if is_open(wish, manifest, snapshot, progress)]
        if not open_:
            await wishes.withdraw(self._redis, queue.job)
        seen: set[str] = set()
        for wish in open_:
            if is_due(wish, manifest, snapshot, progress) and self._can_do(wish, manifest):
                seen.add(await self._bring_up(queue, wish, progress[wish], snapshot))
        return seen

    def _can_do(self, wish: Wish, manifest: Manifest) -> bool:
        match wish:
            case Wish.FEED:
                return manifest.source is not None and self._roots.allow(manifest.source.path)
            case Wish.EXPORT:
                return manifest.wishes.output is not None and self._roots.allow(manifest.wishes.output)
            case Wish.NOTIFY:
                return True

    async def _bring_up(self, queue: LeaseQueue, wish: Wish, progress: Progress, snapshot: JobSnapshot) -> str:
        """Enqueue another attempt if one is needed; the id of the last one."""
        last = job_id(wish, queue.job, queue.epoch, progress.attempt)
        try:
            standing = await asyncio.to_thread(self._desk.standing, wish, last) if progress.attempt else Standing.ABSENT
            held = await self._held(queue, wish, snapshot)
            loose_for_s = self._loose_for_s(last, loose=standing is Standing.LOOSE and not held)
            attempt = next_attempt(Sight(True, held, progress, standing, loose_for_s, snapshot.now_ms))
            if attempt is not None:
                await wishes.begin(self._redis, queue.job, wish, attempt)
                fresh = job_id(wish, queue.job, queue.epoch, attempt)
                if await asyncio.to_thread(self._desk.enqueue, wish, queue.job, fresh):
                    log.debug("%s of a job is enqueued", wish, extra=fields(job=queue.job, attempt=attempt))
        except (RedisError, OSError) as error:
            self._desk_failed(error)
        else:
            self._desk_is_well = True
        return last

    async def _held(self, queue: LeaseQueue, wish: Wish, snapshot: JobSnapshot) -> bool:
        leases: dict[Wish, Lease | None] = {Wish.FEED: snapshot.feeder, Wish.EXPORT: snapshot.collector}
        lease = leases[wish] if wish in leases else await wishes.notifier(self._redis, queue.job, snapshot.now_ms)
        return lease is not None and not is_dead_here(lease.holder)

    def _loose_for_s(self, rq_id: str, *, loose: bool) -> float:
        if not loose:
            self._loose_since_s.pop(rq_id, None)
            return 0.0
        return self._clock() - self._loose_since_s.setdefault(rq_id, self._clock())

    def _desk_failed(self, error: Exception) -> None:
        if self._desk_is_well:
            self._desk_is_well = False
            log.warning("control jobs can't be enqueued (%s); trying again until they can", error)

    async def sweep(self) -> None:
        """Announce every job with an open wish that nobody has announced.

        Raises:
            RedisError, OSError: the store is in trouble.
        """
        rows = {row.job for row in await registry.list_jobs(self._redis)}
        self._tidy &= rows
        for job in sorted(rows - self._tidy - set(await wishes.due(self._redis))):
            try:
                queue = await LeaseQueue.attach(self._redis, job)
                manifest, snapshot = await queue.manifest(), await queue.snapshot()
            except (JobNotFoundError, FormatError):
                continue
            progress = await wishes.progress(self._redis, job)
            if any(is_open(wish, manifest, snapshot, progress) for wish in Wish):
                await wishes.announce(self._redis, job)
            else:
                self._tidy.add(job)
