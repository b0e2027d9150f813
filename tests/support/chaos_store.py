"""A store that is killed and comes back, without its last writes where a power cut would have lost them.

kill -9 alone loses nothing: the kernel has every byte that the server wrote. What a power cut takes are bytes of the
log that were written and not synced, so the tail is cut somewhere between the last length that is known to be synced
and its end. `Watermark` knows that length: one that was seen before a WAITAOF that then succeeded.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

from redis.asyncio import Redis
from redis.exceptions import RedisError

from gristmill.queue.store import OUTAGES
from tests.support.store import StoreProcess


class Watermark:
    """Which length of the log is on disk for certain."""

    def __init__(self, store: StoreProcess) -> None:
        self._store = store
        self.at: tuple[int, int] = (0, 0)
        self.promises = 0

    async def look(self, redis: Redis, promises: int) -> None:
        """Learn a newer length; takes as long as the store's next sync, a second at most.

        `promises` counts how often others have been told until now that what they wrote is synced.
        """
        seen = self._end()
        try:
            local, _ = await redis.execute_command("WAITAOF", 1, 0, 2000)
        except (RedisError, *OUTAGES):
            return
        if local:
            self.at, self.promises = max(self.at, seen), promises

    def cut(self, chance: random.Random, promises: int) -> int:
        """Cut the log of a dead store at a random place behind what is synced; how many bytes were lost.

        Nothing when somebody was told of a sync that we know nothing of: it may have reached to the end.
        """
        number, end = self._end()
        if promises != self.promises:
            return 0
        floor = self.at[1] if self.at[0] == number else 0
        keep = chance.randint(floor, end)
        os.truncate(self._newest(), keep)
        self.at = (number, keep)
        return end - keep

    def _newest(self) -> Path:
        return max((self._store.dir / "appendonlydir").glob("*.incr.aof"), key=_number)

    def _end(self) -> tuple[int, int]:
        """Number and length of the newest file of the log."""
        newest = self._newest()
        return _number(newest), newest.stat().st_size


def _number(log: Path) -> int:
    """The 3 of ``appendonly.aof.3.incr.aof``."""
    return int(log.name.split(".")[-3])
