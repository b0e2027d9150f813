"""Which jobs this worker works on: those that the store lists as runnable and that belong to its pool."""

from __future__ import annotations

import logging
from collections.abc import Callable

from redis.asyncio import Redis

from gristmill.contract.frame import FormatError
from gristmill.contract.manifest import Manifest
from gristmill.queue import registry
from gristmill.queue.errors import JobNotFoundError
from gristmill.queue.leasequeue import LeaseQueue
from gristmilld.clock import Clock
from gristmilld.logs import fields
from gristmilld.worker.session import Session

log = logging.getLogger(__name__)

REFRESH_S = 0.5
IDLE_REFRESH_S = 0.03
"""With nothing to do, a new job is looked for at each tick of the mill."""
FOREIGN_MEMORY = 10_000
"""Jobs of other pools that are remembered, so that each manifest is read once."""


class Roster:
    """The sessions of a worker, one for each job it works on; who gets how many slots is `sharing`'s to say.

    Args:
        redis: the store.
        pool: jobs of other pools are left alone.
        open_session: makes the session of a job.
        clock: monotonic.
    """

    def __init__(
        self, redis: Redis, pool: str, open_session: Callable[[LeaseQueue, Manifest], Session], clock: Clock
    ) -> None:
        self._redis = redis
        self._pool = pool
        self._open = open_session
        self._clock = clock
        self._next_s = 0.0
        self._foreign: dict[str, None] = {}
        self.sessions: dict[str, Session] = {}

    async def refresh(self) -> None:
        """Look for new jobs when it is time; forget those that ended here and hold nothing.

        Raises:
            One of `OUTAGES`.
        """
        now_s = self._clock()
        if now_s < self._next_s:
            return
        busy = any(not session.over for session in self.sessions.values())
        self._next_s = now_s + (REFRESH_S if busy else IDLE_REFRESH_S)
        runnable = await registry.runnable(self._redis)
        for job in runnable:
            if job not in self.sessions and job not in self._foreign:
                await self._join(job)
        ended = [s for job, s in self.sessions.items() if s.gone or (job not in runnable and not s.holds)]
        for session in ended:
            await session.leave()
            del self.sessions[session.job]
            log.info("done with a job", extra=fields(job=session.job))
        for job, session in self.sessions.items():
            if job not in runnable and not session.over:
                await session.renew(session.queue)  # it has ended, or is about to: learn how without a claim

    async def _join(self, job: str) -> None:
        try:
            queue = await LeaseQueue.attach(self._redis, job)
            manifest = await queue.manifest()
        except JobNotFoundError:
            return
        except FormatError as error:
            log.warning("a job is left alone: %s", error, extra=fields(job=job))
            self._forget_later(job)
            return
        if manifest.pool != self._pool:
            self._forget_later(job)
            return
        self.sessions[job] = self._open(queue, manifest)
        log.info("working on a job", extra=fields(job=job))

    def _forget_later(self, job: str) -> None:
        self._foreign[job] = None
        if len(self._foreign) > FOREIGN_MEMORY:
            self._foreign.pop(next(iter(self._foreign)))
