"""What the control child knows of the store's health, and how it lives through an outage.

Leases run out by the store's clock, also while nobody can reach the store to renew them. So nothing may be reaped for
its age until the store has been well for one whole TTL: `well_for_s` counts from the end of the last outage, and at the
start from the start of the store itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from redis.exceptions import RedisError

from gristmilld.clock import Clock

log = logging.getLogger(__name__)

T = TypeVar("T")

TROUBLE = (RedisError, OSError)
"""Away, starting, failing over, or refusing (a full disk): leases can't be renewed then, and waiting is the answer."""

FIRST_WAIT_S = 0.2
LONGEST_WAIT_S = 2.0

Revive = Callable[[], None]
"""Starts the store again when it is our own and was killed; blocks until it answers, raises what went wrong."""


class StoreWatch:
    """Tells of an outage once, and of its end once.

    Args:
        clock: monotonic.
        revive: for the embedded store; None where somebody else looks after the store.
    """

    def __init__(self, clock: Clock, revive: Revive | None = None) -> None:
        self._clock = clock
        self._revive = revive
        self._reviving = asyncio.Lock()
        self._well_since_s = clock()
        self.well = True

    @property
    def well_for_s(self) -> float:
        """How long the store has been well without a break; 0 while it is not."""
        return self._clock() - self._well_since_s if self.well else 0.0

    def up_since(self, uptime_s: float) -> None:
        """The store says that it has run for `uptime_s`: it was well for that long before we came."""
        self._well_since_s = self._clock() - uptime_s

    async def insist(self, call: Callable[[], Awaitable[T]]) -> T:
        """The result of `call`, which is tried again until the store answers; it must bear repetition."""
        wait_s = FIRST_WAIT_S
        while True:
            try:
                result = await call()
            except TROUBLE as error:
                await self._lost(error)
            else:
                self._found()
                return result
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, LONGEST_WAIT_S)

    async def attempt(self, call: Callable[[], Awaitable[object]]) -> bool:
        """Try `call` once; False when the store did not do it. For rounds that come again anyway."""
        try:
            await call()
        except TROUBLE as error:
            await self._lost(error)
            return False
        self._found()
        return True

    def _found(self) -> None:
        if not self.well:
            self.well = True
            self._well_since_s = self._clock()
            log.info("the store is back")

    async def _lost(self, error: Exception) -> None:
        if self.well:
            self.well = False
            log.warning("the store cannot be used (%s); trying again until it can", error)
        if self._revive is None:
            return
        async with self._reviving:
            try:
                await asyncio.to_thread(self._revive)
            except (OSError, RuntimeError) as problem:
                log.warning("the embedded store does not start again: %s", problem)
