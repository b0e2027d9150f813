"""Renews the leases of a worker, on a connection of its own, so that a large batch on the other never delays a renewal.

It renews only while the pump's heart beats: a worker whose pump is stuck loses its leases after their time, and others
run its requests, instead of holding them for ever.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from redis.asyncio import Redis

from gristmill.queue.errors import JobNotFoundError
from gristmill.queue.leasequeue import LeaseQueue
from gristmill.queue.store import OUTAGES
from gristmilld.logs import fields
from gristmilld.worker.session import Session

log = logging.getLogger(__name__)


class Keeper:
    """See the module's head.

    Args:
        redis: a client used by nothing else.
        sessions: those of now.
        heart_age_s: seconds since the pump last went round.
        ttl_s: of the leases.
    """

    def __init__(
        self, redis: Redis, sessions: Callable[[], Iterable[Session]], heart_age_s: Callable[[], float], ttl_s: float
    ) -> None:
        self._redis = redis
        self._sessions = sessions
        self._heart_age_s = heart_age_s
        self._ttl_s = ttl_s
        self._queues: dict[str, LeaseQueue] = {}

    async def run(self) -> None:
        """Renew until cancelled."""
        while True:
            await asyncio.sleep(self._ttl_s / 5)
            if self._heart_age_s() > self._ttl_s / 2:
                log.error("the pump is stuck, leases are not renewed")
                continue
            sessions = [s for s in self._sessions() if s.leased]
            self._queues = {job: q for job, q in self._queues.items() if any(s.job == job for s in sessions)}
            for session in sessions:
                await self._renew(session)

    async def _renew(self, session: Session) -> None:
        try:
            queue = self._queues.get(session.job)
            if queue is None or queue.epoch != session.queue.epoch:
                queue = self._queues[session.job] = await LeaseQueue.attach(self._redis, session.job)
            if queue.epoch == session.queue.epoch:
                await session.renew(queue)
        except JobNotFoundError:
            self._queues.pop(session.job, None)
        except OUTAGES as error:
            log.warning("could not renew a lease: %s", type(error).__name__, extra=fields(job=session.job))
