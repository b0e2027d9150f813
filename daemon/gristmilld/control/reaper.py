"""Gives back what dead workers of this daemon held, as soon as the supervisor tells of their death.

A worker's last call may still lie in the store's buffers when it is dead, and be carried out after the first reap. So a
grave is visited again for a while, then without blame: what was claimed after the crash had no part in it.
"""

from __future__ import annotations

import logging

from redis.asyncio import Redis

from gristmill.contract.frame import FormatError
from gristmill.queue import registry
from gristmill.queue.errors import JobNotFoundError
from gristmill.queue.leasequeue import LeaseQueue
from gristmilld.clock import Clock
from gristmilld.logs import fields

log = logging.getLogger(__name__)

GRAVE_VISITED_S = 60.0
"""Longer than any call of a dead worker can stay in the store's buffers unseen."""


class Reaper:
    """Reaps by token prefix, over every job that workers may hold something of."""

    def __init__(self, redis: Redis, clock: Clock) -> None:
        self._redis = redis
        self._clock = clock
        self._graves: dict[str, float] = {}

    async def bury(self, prefix: str, *, crashed: bool) -> None:
        """Give back what every token that starts with `prefix` holds; as suspects when the worker `crashed`.

        Safe to repeat.

        Raises:
            RedisError, OSError: the store is in trouble; some jobs may have been reaped and others not.
        """
        moved = await self._reap([prefix], crashed=crashed)
        self._graves[prefix] = self._clock() + GRAVE_VISITED_S
        if moved:
            why = "crashed" if crashed else "is gone"
            log.info("worker %s %s; its requests go back", prefix, why, extra=fields(requests=moved))

    async def visit_graves(self) -> None:
        """Reap what has appeared under the tokens of workers that died lately.

        Raises:
            RedisError, OSError: the store is in trouble.
        """
        now_s = self._clock()
        self._graves = {prefix: until_s for prefix, until_s in self._graves.items() if until_s > now_s}
        if self._graves:
            await self._reap(list(self._graves), crashed=False)

    async def _reap(self, prefixes: list[str], *, crashed: bool) -> int:
        starts = tuple(f"{prefix}." for prefix in prefixes)
        moved = 0
        for job in await registry.runnable(self._redis):
            try:
                queue = await LeaseQueue.attach(self._redis, job)
            except (JobNotFoundError, FormatError):
                continue
            for token in await queue.tokens():
                if token.startswith(starts):
                    moved += (await queue.reap(token, force=True, crashed=crashed)).moved
        return moved
