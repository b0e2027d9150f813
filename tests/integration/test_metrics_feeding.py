"""What a feeder says of its work while it works."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis
from tests.support.pictures import quarters, saved
from tests.support.queues import make_job
from tests.support.wait import wait_until

from gristmill.intake import feeder_store
from gristmill.intake.encoder_pool import EncoderPool
from gristmill.intake.errors import PictureError
from gristmill.intake.feeder_store import FeederStore
from gristmill.intake.options import ImageOptions
from gristmill.queue import feedstats
from gristmill.queue.feedstats import FeedStats


async def told(redis, job: str) -> FeedStats | None:
    return (await feedstats.read(redis, [job])).get(job)


async def test_a_feeder_speaks_while_it_holds_its_lease(redis, monkeypatch):
    """At once, again beside each renewal, and no more when it has released it."""
    monkeypatch.setattr(feeder_store, "_RENEW_EVERY_S", 0.05)
    queue = await make_job(redis, leases=False)
    store = FeederStore(queue, "f1", "here", lambda _: None, FeedStats(pictures=1))
    await store.take()

    async def says(pictures: int, *, waiting: bool) -> None:
        async def holds() -> bool:
            stats = await told(redis, queue.job)
            return stats is not None and (stats.pictures, stats.waiting) == (pictures, waiting)

        await wait_until(holds, description=f"{pictures} pictures are told of")

    await says(1, waiting=False)
    store.stats.pictures, store.stats.waiting = 2, True
    await says(2, waiting=True)
    await store.release()
    assert await told(redis, queue.job) is None


async def test_a_full_store_takes_no_feeders_word_but_its_renewals(own_store, monkeypatch):
    """At the memory limit the word is refused; the lease lives on."""
    monkeypatch.setattr(feeder_store, "LEASE_TTL_MS", 600)
    client = Redis.from_url(own_store.url)
    queue = await make_job(client, leases=False)
    await client.config_set("maxmemory", 1)
    store = FeederStore(queue, "f1", "here", lambda _: None)
    await store.take()
    begun_ms = (await queue.snapshot()).now_ms

    async def outlived() -> bool:
        seen = await queue.snapshot()
        assert seen.feeder is not None
        return seen.now_ms > begun_ms + 1500

    await wait_until(outlived, description="the lease is older than its time to live")
    store.require_lease()
    assert await told(client, queue.job) is None
    await store.release()
    await client.aclose()


async def test_encoders_count_what_they_do():
    """Pictures made fit, their bytes before and after, and the time, also of those that are no pictures."""
    pool = EncoderPool(2)
    try:
        data = saved(quarters(300, 200), "BMP")
        done = await asyncio.gather(*(pool.encode(data, ImageOptions()) for _ in range(3)))
        assert pool.stats.pictures == 3
        assert pool.stats.read_bytes == 3 * len(data)
        assert pool.stats.sent_bytes == sum(len(d.data) for d in done)
        spent_s = pool.stats.encode_s
        assert spent_s > 0
        with pytest.raises(PictureError):
            await pool.encode(b"no picture", ImageOptions())
        assert pool.stats.pictures == 3
        assert pool.stats.encode_s > spent_s
    finally:
        await pool.close()
