"""What a worker knows of a job while it is paused and resumed."""

from __future__ import annotations

from redis.asyncio import Redis
from tests.support.jobs import chat, sealed_job

from gristmill.contract.lifecycle import JobState, PauseReason
from gristmilld.clock import monotonic_s
from gristmilld.meter import WorkerMetrics
from gristmilld.worker.session import Session


async def test_what_was_begun_before_a_pause_tells_nothing_after_it(redis: Redis) -> None:
    """So a key that was refused before it was mended does not pause the job once more."""
    queue = await sealed_job(redis, [chat(i) for i in range(9)])
    session = Session(queue, await queue.manifest(), "d.0.0", 30_000, monotonic_s, WorkerMetrics())

    async def look() -> None:
        await session.claim(1, 1 << 20, suspects=False)

    await look()
    before = session.era
    assert not session.is_past(before)
    await queue.pause(PauseReason.CONFIG, "the key is refused")
    await look()
    assert session.state is JobState.PAUSED
    assert session.is_past(before)
    await queue.resume()
    await look()
    assert session.is_past(before)
    assert not session.is_past(session.era)
