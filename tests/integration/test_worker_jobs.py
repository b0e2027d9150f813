"""Several jobs in one worker: priorities, weights, and jobs that can't use their turn."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from redis.asyncio import Redis
from tests.support.jobs import chat, sealed_job, worker
from tests.support.queues import record_of
from tests.support.standin import Standin
from tests.support.wait import wait_until

from gristmill.contract.frame import Request
from gristmill.contract.lifecycle import JobState
from gristmill.queue import LeaseQueue
from gristmill.queue.replies import Claimed
from gristmilld.worker import mill
from gristmilld.worker.attempt import Outcome


class Instant:
    """In place of the calls: every request is answered after one step of the loop."""

    async def run(self, claimed: Claimed, request: Request, *_: Any) -> Outcome:
        await asyncio.sleep(0)
        return Outcome(claimed, record_of(request.ordinal))


async def test_weights_one_and_three_share_twenty_thousand_requests(redis: Redis) -> None:
    """Within a tenth, through the real store, with claims of every size."""
    requests = [chat(i) for i in range(17_000)]
    light = await sealed_job(redis, requests[:8_000], run_size=500, first_alone=0, weight=1)
    heavy = await sealed_job(redis, requests, run_size=500, first_alone=0, weight=3)
    done = (0, 0)

    async def enough() -> bool:
        nonlocal done
        done = ((await light.snapshot()).done, (await heavy.snapshot()).done)
        return sum(done) >= 20_000

    async with worker(redis, "http://127.0.0.1:9/v1", slots=64) as one:
        one.mill._caller = Instant()  # type: ignore[assignment]  # what calls cost is another test's matter
        await wait_until(enough, description="20,000 requests are done", timeout_s=60)
    assert done[1] / done[0] == pytest.approx(3, rel=0.1)


async def test_a_higher_priority_gets_the_next_slots(redis: Redis) -> None:
    """With answers of one second its first request is on its way within two, and the lower job waits until it is
    through."""
    async with Standin(latency=1) as standin, worker(redis, standin.url, slots=6):
        low = await sealed_job(redis, [chat(i) for i in range(300)], first_alone=0)
        await wait_until(lambda: standin.stats["in_flight"] == 6, description="the slots are full")
        high = await sealed_job(redis, [chat(i) for i in range(12)], priority=1, first_alone=0)
        begun_s = time.monotonic()

        async def taken() -> Any:
            return (await high.snapshot()).cur

        await wait_until(taken, description="the first is claimed")
        assert time.monotonic() - begun_s < 2
        handed_out = (await low.snapshot()).cur

        async def all_taken() -> bool:
            return await taken() == 12

        await wait_until(all_taken, description="all of the higher job are claimed")
        assert (await low.snapshot()).cur - handed_out <= 6, "the lower job went on before the higher one was through"


async def goes_on_beside(redis: Redis, url: str, high: LeaseQueue) -> None:
    """A job of lower priority completes, and the higher one is not done by then."""
    low = await sealed_job(redis, [chat(i) for i in range(40)], first_alone=0)
    async with worker(redis, url, slots=8, drain_s=0):

        async def complete() -> bool:
            return (await low.snapshot()).state is JobState.COMPLETE

        await wait_until(complete, description="the lower job completes")
        assert (await high.snapshot()).state is JobState.RUNNING


@pytest.mark.parametrize(
    "limits",
    [{"first_alone": 1}, {"first_alone": 0, "results_mark_bytes": 1}, {"first_alone": 0, "max_in_flight": 1}],
    ids=["in its trial", "at its results mark", "at its limit in flight"],
)
async def test_a_job_that_cannot_use_its_turn_blocks_nobody(redis: Redis, limits: dict[str, int]) -> None:
    """However high its priority is, what it can't use is for others."""
    stall = {"kind": "stall", "text": "HANGS"}
    async with Standin(latency=0.01, faults=[stall]) as standin:
        first = "" if "results_mark_bytes" in limits else "HANGS"
        requests = [chat(0, first), *(chat(i) for i in range(1, 500))]
        high = await sealed_job(redis, requests, priority=9, **limits)
        await goes_on_beside(redis, standin.url, high)


async def test_the_limit_in_flight_holds_over_all_workers(redis: Redis) -> None:
    """Three workers with room for 24 run no more than 5 at a time, use all 5, and lose no time between them."""
    async with Standin(latency=0.05) as standin:
        queue = await sealed_job(redis, [chat(i) for i in range(200)], first_alone=0, max_in_flight=5)
        async with (
            worker(redis, standin.url, slots=8, prefix="d.0.0"),
            worker(redis, standin.url, slots=8, prefix="d.1.0"),
            worker(redis, standin.url, slots=8, prefix="d.2.0"),
        ):

            async def complete() -> bool:
                return (await queue.snapshot()).state is JobState.COMPLETE

            begun_s = time.monotonic()
            await wait_until(complete, description="the job completes")
        took_s = time.monotonic() - begun_s
    assert standin.stats["in_flight_max"] == 5
    assert took_s < 3 * 200 / 5 * 0.05, "freed places stood empty for too long"


async def suspected(redis: Redis, count: int) -> LeaseQueue:
    """A job of `count` requests that a crashed worker held."""
    queue = await sealed_job(redis, [chat(i) for i in range(count)], first_alone=0)
    await queue.claim("x.0.0.0", count, 1 << 20, 30_000, believed=False, suspects=False)
    await queue.reap("x.0.0.0", force=True, crashed=True)
    return queue


async def complete(queue: LeaseQueue) -> bool:
    return (await queue.snapshot()).state is JobState.COMPLETE


async def test_a_worker_that_holds_nothing_takes_suspects_first(redis: Redis) -> None:
    """Of whichever job, for later it will hold something; and none but them, in no larger company than half its
    slots."""
    plain = await sealed_job(redis, [chat(i) for i in range(100)], first_alone=0, priority=5)
    suspects = await suspected(redis, 20)
    async with Standin(latency=0.2) as standin, worker(redis, standin.url, slots=8):
        await wait_until(lambda: standin.stats["in_flight"] > 0, description="something runs")
        assert (await plain.snapshot()).cur == 0
        assert (await suspects.snapshot()).in_flight == 4
        await wait_until(lambda: complete(suspects), description="the suspects are cleared")
        await wait_until(lambda: complete(plain), description="the other job goes on")


@pytest.mark.parametrize("quarantine", [True, False])
async def test_a_busy_worker_makes_way_for_suspects(
    redis: Redis, monkeypatch: pytest.MonkeyPatch, quarantine: bool
) -> None:
    """Where no worker is ever idle, suspects would wait for ever: the one of a daemon that is told to becomes idle for
    them after a while, the others go on."""
    monkeypatch.setattr(mill, "SUSPECTS_PATIENCE_S", 0.2)
    async with Standin(latency=0.05) as standin, worker(redis, standin.url, slots=4, quarantine=quarantine):
        busy = await sealed_job(redis, [chat(i) for i in range(1000)], first_alone=0)
        await wait_until(lambda: standin.stats["in_flight"] == 4, description="the worker is busy")
        suspects = await suspected(redis, 3)
        handed_out = (await busy.snapshot()).cur

        async def served() -> bool:
            return (await suspects.snapshot()).done == 3

        async def goes_on() -> bool:
            return (await busy.snapshot()).cur > handed_out + 60

        await wait_until(served if quarantine else goes_on, description="the worker does what it should")
        assert (await busy.snapshot()).state is JobState.RUNNING
        assert await served() is quarantine
