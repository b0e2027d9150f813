"""Does for every job what nobody may be left to do: ends leases that ran out, settles, expires, frees and mends.

Everything here is safe to repeat and to do twice at once, so each daemon does it, for all pools; rounds have jitter,
lest they keep step. *Rounds* look at the jobs that workers look at. A *sweep*, less often, looks at all others, for
what a client left half done when it died: a row without a job, an ended job with payload, a removal not finished, a
running job that no worker can find. It also forgets jobs: one that has ended and whose results have all been collected
is removed when its time (`Manifest.keep_ms`, from the first sweep that sees it so) has passed; while its webhook has
yet to be called, it stays for another day. Results that nobody has collected stay for ever.
"""

from __future__ import annotations

import logging

from redis.asyncio import Redis

from gristmill.contract.frame import FormatError
from gristmill.contract.keys import JobKeys
from gristmill.contract.lifecycle import TERMINAL, JobState
from gristmill.queue import registry, wishes
from gristmill.queue.controlling import finish_removal
from gristmill.queue.errors import JobNotFoundError
from gristmill.queue.leasequeue import LeaseQueue
from gristmill.queue.registry import JobRow
from gristmill.queue.replies import JobSnapshot
from gristmill.queue.wishes import Wish
from gristmilld.clock import Clock
from gristmilld.control.reaper import Reaper
from gristmilld.control.storewatch import StoreWatch
from gristmilld.control.wanting import is_open
from gristmilld.control.watchdog import Watchdog
from gristmilld.logs import fields

log = logging.getLogger(__name__)

CANCEL_GRACE_S = 30.0
"""A job that is being cancelled waits so long for what is in flight."""
LOOK_AGAIN_S = 300.0
"""A job that has ended is looked at this often, to see whether its results have been collected."""
OWED_MS = 86_400_000
"""Longer than all tries at a webhook; a store whose daemons call none forgets its jobs all the same."""


class Janitor:
    """See the module's head.

    Args:
        redis: the store.
        reaper: whose graves are visited in each round.
        watch: knows how long the store has been well.
        lease_ttl_s: nothing is reaped for its age before the store has been well for so long.
        clock: monotonic.
        watchdog: sees every job of a round; None where nobody wants to know.
    """

    def __init__(
        self,
        redis: Redis,
        reaper: Reaper,
        watch: StoreWatch,
        lease_ttl_s: float,
        clock: Clock,
        watchdog: Watchdog | None = None,
    ) -> None:
        self._watchdog = watchdog
        self._redis = redis
        self._reaper = reaper
        self._watch = watch
        self._lease_ttl_s = lease_ttl_s
        self._clock = clock
        self._cancelling_since_s: dict[str, float] = {}
        self._tidy_until_s: dict[str, float] = {}

    async def round(self) -> None:
        """Look once at every job that workers look at.

        Raises:
            RedisError, OSError: the store is in trouble.
        """
        await self._reaper.visit_graves()
        jobs = await registry.runnable(self._redis)
        self._cancelling_since_s = {j: s for j, s in self._cancelling_since_s.items() if j in jobs}
        if self._watchdog is not None:
            self._watchdog.forget_all_but(jobs)
        for job in jobs:
            try:
                await self._look_after(await LeaseQueue.attach(self._redis, job))
            except JobNotFoundError:
                await registry.unmark_runnable(self._redis, job)
            except FormatError as error:
                log.debug("job %s is left alone: %s", job, error)

    async def _look_after(self, queue: LeaseQueue) -> None:
        if self._watch.well_for_s >= self._lease_ttl_s:
            ended = await queue.reap_expired()
            if ended:
                log.info("leases of lost workers ended", extra=fields(job=queue.job, leases=ended))
        seen = await queue.snapshot()
        if seen.state is JobState.CANCELLING:
            await self._settle(queue)
        elif seen.state in TERMINAL:
            await registry.unmark_runnable(self._redis, queue.job)
        elif seen.is_late and (await queue.expire()).state is JobState.EXPIRED:
            log.info("the deadline of a job has passed", extra=fields(job=queue.job))
        elif self._watchdog is not None:
            await self._watchdog.look(queue, seen)

    async def _settle(self, queue: LeaseQueue) -> None:
        since_s = self._cancelling_since_s.setdefault(queue.job, self._clock())
        reply = await queue.settle(force=self._clock() - since_s >= CANCEL_GRACE_S)
        if reply.state is JobState.CANCELLED:
            log.info("a job is cancelled", extra=fields(job=queue.job))

    async def sweep(self) -> None:
        """Look once at all other jobs.

        Raises:
            RedisError, OSError: the store is in trouble.
        """
        await registry.tidy_jobs(self._redis)
        runnable = set(await registry.runnable(self._redis))
        rows = {row.job: row for row in await registry.list_jobs(self._redis)}
        now_s, now_ms = self._clock(), await registry.now_ms(self._redis)
        self._tidy_until_s = {
            job: until_s
            for job, until_s in self._tidy_until_s.items()
            if job in rows and job not in runnable and until_s > now_s
        }
        for job, row in rows.items():
            over = row.forget_at_ms is not None and row.forget_at_ms <= now_ms
            if job not in runnable and (over or job not in self._tidy_until_s):
                await self._mend(row)

    async def _mend(self, row: JobRow) -> None:
        job = row.job
        try:
            queue = await LeaseQueue.attach(self._redis, job)
            seen = await queue.snapshot()
        except JobNotFoundError:
            await self._finish_removal(row)
            return
        except FormatError as error:
            log.debug("job %s is left alone: %s", job, error)
            return
        if seen.state not in TERMINAL:
            await registry.keep_job(self._redis, job)
            await registry.mark_runnable(self._redis, job, (await queue.manifest()).priority)
            return
        if seen.state is not JobState.COMPLETE and seen.payload_bytes:
            await queue.settle()
        if seen.in_flight and self._watch.well_for_s >= self._lease_ttl_s:
            await queue.reap_expired()
        await self._keep_or_forget(queue, seen, row)

    async def _keep_or_forget(self, queue: LeaseQueue, seen: JobSnapshot, row: JobRow) -> None:
        """A job that has ended is forgotten when its time has come, and never while it has results to collect."""
        self._tidy_until_s[row.job] = self._clock() + LOOK_AGAIN_S
        if not seen.is_collected:
            if row.forget_at_ms is not None:
                await registry.keep_job(self._redis, row.job)
        elif row.forget_at_ms is None:
            await registry.keep_job_until(self._redis, row.job, seen.now_ms + seen.keep_ms)
        elif row.forget_at_ms <= seen.now_ms and not await self._owes_a_call(queue, seen, row.forget_at_ms):
            await queue.remove()
            log.info("a job that was collected long ago is forgotten", extra=fields(job=row.job))

    async def _owes_a_call(self, queue: LeaseQueue, seen: JobSnapshot, forget_at_ms: int) -> bool:
        """Whether the job's webhook has not been called yet and may still be."""
        if seen.now_ms - forget_at_ms > OWED_MS:
            return False
        manifest = await queue.manifest()
        if manifest.wishes.notify is None:
            return False
        return is_open(Wish.NOTIFY, manifest, seen, await wishes.progress(self._redis, queue.job))

    async def _finish_removal(self, row: JobRow) -> None:
        """A job that says `deleting` can't be attached to any more, and its removal may have died half way.

        Of one whose hash is gone only the row is left: it gets the ten minutes of a row whose job is yet to come.
        """
        job = row.job
        if await finish_removal(self._redis, job):
            log.info("the removal of a job is finished", extra=fields(job=job))
        elif row.forget_at_ms is None and not await self._redis.exists(JobKeys(job).meta):
            now_ms = await registry.now_ms(self._redis)
            await registry.keep_job_until(self._redis, job, now_ms + registry.ANNOUNCED_MS)
