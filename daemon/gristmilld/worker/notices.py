"""Shares rate limits between workers: says on the pool's board what this one was told, and heeds what others say."""

from __future__ import annotations

import asyncio
import logging

from redis.asyncio import Redis

from gristmill.queue import board
from gristmill.queue.store import OUTAGES
from gristmilld.upstream.endpoint import Endpoint
from gristmilld.upstream.pool import EndpointPool

log = logging.getLogger(__name__)

PERIOD_S = 1.0
RENEW_S = board.FRESH_MS / 1000 / 3


class Notices:
    """See the module's head.

    Args:
        redis: the store.
        pool: of the daemon; the board's name.
        worker: distinct in the pool.
        endpoints: of this worker.
    """

    def __init__(self, redis: Redis, pool: str, worker: str, endpoints: EndpointPool) -> None:
        self._redis = redis
        self._pool = pool
        self._worker = worker
        self._endpoints = endpoints
        self._said: dict[str, tuple[str, int]] = {}
        self._said_ms = 0

    async def run(self) -> None:
        """Say and heed until cancelled."""
        while True:
            try:
                await self.turn()
            except OUTAGES as error:
                log.debug("the board cannot be read: %s", type(error).__name__)
            await asyncio.sleep(PERIOD_S)

    async def turn(self) -> None:
        """One round.

        Raises:
            One of `OUTAGES`.
        """
        seen = await board.read(self._redis, self._pool, but=self._worker)
        troubles = self._troubles(seen.now_ms)
        if troubles.keys() != self._said.keys() or (troubles and seen.now_ms - self._said_ms > RENEW_S * 1000):
            await board.post(self._redis, self._pool, self._worker, troubles, seen.now_ms)
            self._said, self._said_ms = troubles, seen.now_ms
        self._heed(seen)

    def _troubles(self, now_ms: int) -> dict[str, tuple[str, int]]:
        """What this worker met itself: what it only heeds is not said again, or it would never end."""
        return {
            e.url: (e.state, now_ms + int(e.ready_in_s * 1000))
            for e in self._endpoints.endpoints
            if e.state in {"down", "cooling"} and not e.limits.heeding
        }

    def _heed(self, seen: board.Board) -> None:
        by_url: dict[str, list[Endpoint]] = {}
        for endpoint in self._endpoints.endpoints:
            by_url.setdefault(endpoint.url, []).append(endpoint)
        for notice in seen.notices:
            wait_s = (notice.until_ms - seen.now_ms) / 1000
            if notice.state == "cooling" and wait_s > 0:
                for endpoint in by_url.get(notice.endpoint, ()):
                    endpoint.limits.hold_back(endpoint.now() + wait_s)
