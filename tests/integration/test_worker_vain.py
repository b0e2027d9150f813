"""A job that begins with lines that can't be sent."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis
from tests.support.jobs import chat, results, sealed_job, worker
from tests.support.standin import Standin
from tests.support.wait import wait_until

from gristmill.contract.failure import FailureClass
from gristmill.contract.frame import Refusal
from gristmill.contract.lifecycle import JobState


@pytest.mark.parametrize("good", [0, 10])
async def test_a_thousand_refusals_do_not_hold_up_what_follows(redis: Redis, good: int) -> None:
    """Its first requests go out alone, a few at a time; those that can't be sent must not cost a pause each."""
    bad = [Refusal(i, None, bytes(16), FailureClass.BAD_INPUT, f"line {i + 1}: no JSON", i + 1) for i in range(1000)]
    async with Standin() as standin, worker(redis, standin.url):
        queue = await sealed_job(redis, [*bad, *(chat(1000 + n) for n in range(good))], first_alone=4)

        async def complete() -> bool:
            return (await queue.snapshot()).state is JobState.COMPLETE

        await wait_until(complete, description="the job is complete", timeout_s=10)  # with a pause each: 30 s
        records = await results(queue)
    assert [records[i].cls for i in range(1000)] == [FailureClass.BAD_INPUT] * 1000
    assert all(records[1000 + n].ok for n in range(good))
    assert standin.stats["requests"] == good
