"""Waiting until a job is where no accident of one server can lose it: in the store's log on disk, and on a replica.

The store counts what a connection has waited for from that connection's last write, so a write that changes nothing
(scripts/touch.lua) goes first, on the same connection: everything that anybody wrote to that server before it is then
where the write is. A store that keeps no log, has no replica connected, does not know the question (WAITAOF came with
Redis 7.2) or does not let this user ask it, has nothing to wait for.

A primary that was replaced and does not know it has no replica any more, and would say yes: sentinels are asked anew.

In a cluster the row in the list of jobs lies with another server, and a failover there may have lost it; it is written
again, and from it the daemons mend the list of those to work on.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from redis.exceptions import NoScriptError

from gristmill.queue import loader, registry
from gristmill.queue.cluster import ClusterRedis
from gristmill.queue.errors import JobNotFoundError
from gristmill.queue.handle import Handle
from gristmill.queue.primary import FollowingPool
from gristmill.queue.store import OUTAGES


class Place(StrEnum):
    """Where a job has to be."""

    DISK = "the store's disk"
    REPLICA = "a replica of the store"


async def lacking(handle: Handle, timeout_ms: int) -> list[Place]:
    """The places that do not have the job as it stands now within `timeout_ms` each; none: it is safe.

    Raises:
        JobNotFoundError: it was removed.
        One of `OUTAGES`.
    """
    if isinstance(handle.redis, ClusterRedis):
        await registry.keep_job(handle.redis, handle.keys.job)
    pool = handle.redis.connection_pool
    if isinstance(pool, FollowingPool):
        await pool.doubt()
    replicated = int((await handle.redis.info("replication")).get("connected_slaves", 0)) > 0
    touched, *answers = await _ask(handle, replicated=replicated, timeout_ms=timeout_ms)
    if touched[0] != b"OK":
        raise JobNotFoundError(handle.keys.job)
    asked = zip(Place, answers, (True, replicated), strict=True)
    return [place for place, answer, matters in asked if matters and _denied(answer)]


async def _ask(handle: Handle, *, replicated: bool, timeout_ms: int) -> list[Any]:
    """The reply to the write, and the replies, or refusals, to the questions: for the disk, and for a replica."""
    script = loader.scripts()["touch"]
    for _ in range(loader.LOADS):
        async with handle.redis.pipeline(transaction=False) as pipe:
            pipe.execute_command("EVALSHA", script.sha, 1, handle.keys.meta, handle.epoch)
            pipe.execute_command("WAITAOF", 1, 0, timeout_ms)
            pipe.execute_command("WAIT", int(replicated), timeout_ms)
            replies: list[Any] = await pipe.execute(raise_on_error=False)
        if not isinstance(replies[0], NoScriptError):
            break
        await handle.redis.script_load(script.text)
    if isinstance(replies[0], Exception):
        raise replies[0]
    return replies


def _denied(answer: Any) -> bool:
    """Whether the place was asked and does not have it."""
    if isinstance(answer, OUTAGES):
        raise answer
    return not isinstance(answer, Exception) and answer in (0, [0, 0], [0, 1])
