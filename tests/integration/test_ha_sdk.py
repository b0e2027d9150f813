"""A client of the SDK whose store has lost the end of a job that was fed: a file is fed again, an iterable can't be."""

from __future__ import annotations

from pathlib import Path

import pytest
from redis.asyncio import Redis
from tests.support.cli import write_requests
from tests.support.queues import claim, make_job
from tests.support.wait import wait_until

from gristmill.intake.options import EncodeOptions
from gristmill.intake.source import identify
from gristmill.queue import LeaseQueue
from gristmill.sdk import jobs
from gristmill.sdk.errors import FeedingError
from gristmill.sdk.jobs import CoreJob


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "REOPENED_PERIOD_S", 0.05)


async def lose_the_close(redis: Redis, queue: LeaseQueue) -> None:
    """As if a replica had taken over that had everything but the last call of the feeder."""
    await redis.hset(queue.keys.meta, "closed", "0")
    await redis.hdel(queue.keys.meta, "n")


async def is_closed(queue: LeaseQueue) -> bool:
    return (await queue.snapshot()).closed


async def test_a_file_is_fed_again(redis: Redis, tmp_path: Path):
    """The job is closed once more, with every line once."""
    queue = await make_job(redis, leases=False)
    job = CoreJob(queue, "me", lambda: None)
    job.feed_file(identify(write_requests(tmp_path / "in.jsonl", 20)), EncodeOptions(model="m"))
    await wait_until(lambda: is_closed(queue), description="fed")
    await wait_until(lambda: job.fed, description="the feeder has ended")
    await lose_the_close(redis, queue)
    await wait_until(lambda: is_closed(queue), description="fed again")
    assert (await queue.snapshot()).n == 20
    assert len((await claim(queue, "w.1", 100)).claimed) == 20
    job.require_well()
    await job.leave(cancel=False)


async def test_an_iterable_that_is_lost_ends_its_job(redis: Redis):
    """It is cancelled, and whoever reads its results is told why, instead of waiting for ever."""
    queue = await make_job(redis, leases=False)
    job = CoreJob(queue, "me", lambda: None)
    job.feed_stream(EncodeOptions(model="m")).end()
    await wait_until(lambda: is_closed(queue), description="fed")
    await wait_until(lambda: job.fed, description="the feeder has ended")
    await redis.hset(queue.keys.meta, "state", "running")  # an empty job is complete at once
    await lose_the_close(redis, queue)

    async def cancelled() -> bool:
        return (await queue.snapshot()).state == "cancelled"

    await wait_until(cancelled, description="the job is cancelled")
    with pytest.raises(FeedingError, match="an iterable can't be read again"):
        job.require_well()
    await job.leave(cancel=False)
