"""Looks around a job: what `waiting` decides from, read from the store."""

from __future__ import annotations

from redis.asyncio import Redis

from gristmill.queue import board, feedstats, registry
from gristmill.queue.leasequeue import LeaseQueue
from gristmill.queue.replies import JobSnapshot
from gristmill.queue.waiting import Scene


async def look_around(redis: Redis, queue: LeaseQueue, job: JobSnapshot, *, oldest: bool) -> Scene:
    """The scene of `job`.

    Args:
        redis: the store.
        queue: of the job.
        job: its snapshot.
        oldest: whether to look for the oldest request in flight, too, which reads what every worker holds.

    Raises:
        One of `OUTAGES`.
    """
    feeds = await feedstats.read(redis, [job.job])
    found = await queue.stragglers(most=1) if oldest and job.in_flight else []
    return Scene(
        job=job,
        board=await board.read(redis, job.pool),
        daemons=await registry.live_daemons(redis, job.pool),
        feed=feeds.get(job.job),
        oldest=next(iter(found), None),
    )
