"""Says what a job of this daemon's pool waits for when nothing of it has finished for long, once for each reason.

It looks around only for jobs that stand still, so a job that works costs it nothing. A pause is said by whoever paused
the job, and not again here.
"""

from __future__ import annotations

import logging

from redis.asyncio import Redis

from gristmill.queue.leasequeue import LeaseQueue
from gristmill.queue.replies import JobSnapshot
from gristmill.queue.scene import look_around
from gristmill.queue.waiting import Reason, idle_s, waits_for
from gristmilld.logs import fields

log = logging.getLogger(__name__)


class Watchdog:
    """See the module's head.

    Args:
        redis: the store.
        pool: jobs of other pools are their daemons' business.
        stalled_after_s: so long without a finished request is worth a word.
    """

    def __init__(self, redis: Redis, pool: str, stalled_after_s: float) -> None:
        self._redis = redis
        self._pool = pool
        self._stalled_after_s = stalled_after_s
        self._told: dict[tuple[str, str], Reason] = {}

    async def look(self, queue: LeaseQueue, job: JobSnapshot) -> None:
        """Look at one job that workers look at.

        Raises:
            One of `OUTAGES`.
        """
        if job.pool != self._pool:
            return
        key = (job.job, job.epoch)
        idle = idle_s(job)
        if idle < self._stalled_after_s:
            if self._told.pop(key, None) is not None:
                log.info("a job goes on", extra=fields(job=job.job))
            return
        wait = waits_for(await look_around(self._redis, queue, job, oldest=True))
        if wait is None or self._told.get(key) is wait.reason:
            return
        self._told[key] = wait.reason
        if wait.reason is not Reason.PERSON:
            log.warning("nothing has finished for %.0f s: waiting for %s", idle, wait.what, extra=fields(job=job.job))

    def forget_all_but(self, jobs: list[str]) -> None:
        """Jobs that workers do not look at any more need no memory."""
        self._told = {key: reason for key, reason in self._told.items() if key[0] in jobs}
