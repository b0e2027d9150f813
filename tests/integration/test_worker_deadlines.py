"""Deadlines as a worker lives them: of the job, and of single requests."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis
from tests.support.invariants import check_invariants
from tests.support.jobs import chat, results, sealed_job, worker
from tests.support.standin import Standin
from tests.support.wait import wait_until

from gristmill.contract.failure import FailureClass
from gristmill.contract.lifecycle import JobState
from gristmill.queue import LeaseQueue, registry


async def until_complete(queue: LeaseQueue) -> None:
    async def complete() -> bool:
        return (await queue.snapshot()).state is JobState.COMPLETE

    await wait_until(complete, description="the job is complete")


@pytest.mark.parametrize("trouble", ["slow", "down"])
async def test_an_expired_job_leaves_the_worker_at_once(redis: Redis, trouble: str) -> None:
    """Calls of it are cut and requests that wait for a server wait no longer, so that others have the slots."""
    async with Standin(latency=60) as standin:
        url = standin.url if trouble == "slow" else "http://127.0.0.1:9/v1"
        async with worker(redis, url, slots=4) as one:
            queue = await sealed_job(redis, [chat(i) for i in range(20)], first_alone=0)
            await wait_until(lambda: one.mill.in_flight == 4, description="its slots are full")
            await queue.expire()
            await wait_until(lambda: one.mill.in_flight == 0, description="its slots are free", timeout_s=5)
            await wait_until(lambda: not one.roster.sessions, description="the worker is done with the job")
        seen = await queue.snapshot()
        assert (seen.state, seen.done, seen.in_flight) == (JobState.EXPIRED, 0, 0)
        await wait_until(lambda: standin.stats["in_flight"] == 0, description="the server is left alone")


async def test_a_removed_job_leaves_the_worker_at_once(redis: Redis) -> None:
    """Nobody wants its answers."""
    async with Standin(latency=60) as standin, worker(redis, standin.url, slots=4) as one:
        queue = await sealed_job(redis, [chat(i) for i in range(20)], first_alone=0)
        await wait_until(lambda: one.mill.in_flight == 4, description="its slots are full")
        await queue.remove()
        await wait_until(lambda: one.mill.in_flight == 0, description="its slots are free", timeout_s=5)


async def test_a_straggler_fails_at_its_own_deadline_and_holds_up_nobody(redis: Redis) -> None:
    """The one request that hangs ends as `deadline` with its attempt counted; the others have their answers."""
    stall = {"kind": "stall", "text": "HANGS"}
    async with Standin(latency=0.01, faults=[stall]) as standin, worker(redis, standin.url):
        requests = [chat(i, "HANGS" if i == 3 else "") for i in range(10)]
        queue = await sealed_job(redis, requests, first_alone=0, request_deadline_ms=500)
        await until_complete(queue)
        await check_invariants(redis, queue)
    records = await results(queue)
    assert {i for i, r in records.items() if not r.ok} == {3}
    assert (records[3].cls, records[3].attempts) == (FailureClass.DEADLINE, 1)
    assert records[3].detail.message == "no answer within 0.5 s of its first start"


async def test_retries_end_at_the_deadline_of_the_request(redis: Redis) -> None:
    """A server that asks for an hour's patience does not get it; the deadline decides, not the back-off."""
    busy = {"kind": "status", "status": 503, "retry_after": 3600}
    async with Standin(faults=[busy]) as standin, worker(redis, standin.url, slots=2):
        queue = await sealed_job(redis, [chat(0)], first_alone=0, request_deadline_ms=400)
        await until_complete(queue)
    assert (await results(queue))[0].cls is FailureClass.DEADLINE


async def test_the_age_of_a_request_counts_from_its_first_claim(redis: Redis) -> None:
    """Another worker held it until it was too old: it is failed without a further call."""
    async with Standin() as standin:
        queue = await sealed_job(redis, [chat(0), chat(1)], first_alone=0, request_deadline_ms=300)
        [first] = (await queue.claim("x.0.0.0", 1, 1 << 20, 30_000, believed=False, suspects=False)).claimed

        async def old() -> bool:
            return await registry.now_ms(redis) > first.claim + 300

        await wait_until(old, description="it is too old")
        await queue.reap("x.0.0.0", force=True, crashed=False)
        async with worker(redis, standin.url):
            await until_complete(queue)
    records = await results(queue)
    assert (records[0].cls, records[0].attempts, records[1].ok) == (FailureClass.DEADLINE, 0, True)
    assert standin.stats["requests"] == 1
