"""The lease of a job's one collector: only its holder may ack results."""

from __future__ import annotations

import asyncio

from gristmill.holders import is_dead_here
from gristmill.outlet.errors import CollectorBusyError, LeaseLostError
from gristmill.queue.errors import JobNotFoundError
from gristmill.queue.leasequeue import LeaseQueue
from gristmill.queue.replies import Role
from gristmill.queue.store import OUTAGES


class CollectorLease:
    """The collector's lease on the job: taken once, renewed thrice per lifetime.

    Attributes:
        token: names it.
        lost: somebody else has taken it.
    """

    def __init__(self, queue: LeaseQueue, token: str, holder: str, ttl_ms: int) -> None:
        self._queue = queue
        self.token = token
        self._holder = holder
        self._ttl_ms = ttl_ms
        self.lost = False

    async def take(self, *, force: bool = False) -> None:
        """Take it; `force` takes it from a live holder, too.

        Raises:
            CollectorBusyError: somebody else holds it.
        """
        reply = await self._queue.take_lease(Role.COLLECTOR, self.token, self._holder, self._ttl_ms, force=force)
        if not reply.granted:
            raise CollectorBusyError(self._queue.job, reply.holder, reply.expires_in_ms)

    async def retake(self) -> None:
        """Get it back where nobody else took it: it lapsed, or the store forgot it.

        A store that lost its last writes may name the one before us again; when that one is dead, it is ours.

        Raises:
            LeaseLostError: somebody else has it.
        """
        try:
            await self.take()
        except CollectorBusyError as error:
            if is_dead_here(error.holder):
                await self.take(force=True)
                return
            self.lost = True
            raise LeaseLostError(self._queue.job) from None

    async def keep(self) -> None:
        """Renew until cancelled or lost; an outage is no reason to stop trying."""
        while not self.lost:
            await asyncio.sleep(self._ttl_ms / 3000)
            try:
                if not await self._queue.renew_lease(Role.COLLECTOR, self.token, self._ttl_ms):
                    await self.retake()
            except OUTAGES:
                continue
            except (LeaseLostError, JobNotFoundError):
                return  # the next round meets the same and tells the caller

    async def release(self) -> None:
        """Give it back; when the store does not answer within a second it lapses by itself."""
        if self.lost:
            return
        try:
            async with asyncio.timeout(1):
                await self._queue.release_lease(Role.COLLECTOR, self.token)
        except JobNotFoundError:
            return
        except OUTAGES:  # our own time-out, too
            return
