"""What every call on a job needs: the client, the keys, the epoch, and the watch on the version.

The version rises with every change, so a reply that is older than what had been seen *before its call was sent* proves
that the store lost a suffix of its history (power loss, failover). Replies of calls that overlapped say nothing.
A client that was silent while others carried the version past its own cannot see the loss this way: whoever keeps a
buffer of recent commits also sends it again after each reconnect.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.asyncio import Redis

from gristmill.contract.keys import JobKeys
from gristmill.queue import loader
from gristmill.queue.cluster import at
from gristmill.queue.loader import Arg


class Handle:
    """One job in one store.

    Attributes:
        redis: the client; in a cluster that of the node that has the job's keys.
        keys: the job's keys.
        epoch: which incarnation of the job id this is.
        block_size: indices per result block.
        version: the highest version seen since the last loss.
        rolled_back: the store lost a suffix; whoever acts on it clears it.
    """

    __slots__ = ("block_size", "epoch", "keys", "redis", "rolled_back", "version")

    def __init__(self, redis: Redis, keys: JobKeys, epoch: str, block_size: int) -> None:
        self.redis = at(redis, keys.meta)
        self.keys = keys
        self.epoch = epoch
        self.block_size = block_size
        self.version = 0
        self.rolled_back = False

    async def call(self, script: str, keys: Sequence[str], *args: Arg, version_at: int) -> list[Any]:
        """Run a script on this job; the epoch goes first, and the reply's item `version_at` is the version."""
        floor = self.version
        reply = await loader.call(self.redis, script, keys, (self.epoch, *args))
        self.see(floor, reply[version_at])
        return reply

    async def call_each(
        self, script: str, calls: Sequence[tuple[Sequence[str], Sequence[Arg]]], *, version_at: int
    ) -> list[list[Any]]:
        """As `call`, many times in one pipeline."""
        floor = self.version
        with_epoch = [(keys, (self.epoch, *args)) for keys, args in calls]
        replies = await loader.call_each(self.redis, script, with_epoch)
        for reply in replies:
            self.see(floor, reply[version_at])
        return replies

    def see(self, floor: int, version: int) -> None:
        """Note a reply's version; its call was sent when `floor` was the highest seen. 0: the job is gone."""
        if 0 < version < floor:
            self.rolled_back = True
            self.version = version
        elif version > self.version:
            self.version = version
