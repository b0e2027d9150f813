"""What a feeder says of its work while it works, for whoever watches: one small value with a time to live.

It is advisory: nothing depends on it, a feeder that cannot write it goes on, and it is gone soon after its feeder.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from redis.asyncio import Redis

from gristmill.contract import keys

TTL_S = 30.0


class FeedStats(msgspec.Struct, kw_only=True):
    """One feeder's work so far, which its parts add to; counts start at 0 with each feeder.

    Attributes:
        waiting: it waits for room in the store just now.
        pictures: that encoders have made fit to send; those that were fit already are not counted.
        read_bytes: of these pictures before.
        sent_bytes: of these pictures after.
        encode_s: time that encoders have spent on them, summed over the encoders.
    """

    waiting: bool = False
    pictures: int = 0
    read_bytes: int = 0
    sent_bytes: int = 0
    encode_s: float = 0.0


async def publish(redis: Redis, job: str, stats: FeedStats) -> None:
    """Replace what is said of the feeder of `job`; it is forgotten after `TTL_S`."""
    await redis.set(keys.feed(job), msgspec.json.encode(stats), px=int(TTL_S * 1000))


async def forget(redis: Redis, job: str) -> None:
    """The feeder of `job` has ended."""
    await redis.delete(keys.feed(job))


async def read(redis: Redis, jobs: Sequence[str]) -> dict[str, FeedStats]:
    """What the feeders of `jobs` say; jobs without a feeder that speaks are left out."""
    if not jobs:
        return {}
    async with redis.pipeline(transaction=False) as pipe:  # not MGET: in a cluster they lie apart
        for job in jobs:
            pipe.get(keys.feed(job))
        texts = await pipe.execute()
    return {job: msgspec.json.decode(t, type=FeedStats) for job, t in zip(jobs, texts, strict=True) if t is not None}
