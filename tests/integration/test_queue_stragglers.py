"""What a job still waits for, and giving it up: over real workers and by hand."""

from __future__ import annotations

from redis.asyncio import Redis
from tests.support.invariants import check_invariants
from tests.support.jobs import chat, results, sealed_job, worker
from tests.support.queues import claim, fed_job, finish, give_back
from tests.support.standin import Standin
from tests.support.wait import wait_until

from gristmill.contract.failure import FailureClass
from gristmill.contract.lifecycle import JobState


async def test_stragglers_come_oldest_first_with_their_place(redis: Redis):
    """Held and waiting ones, by the time of their first start; what is done or was never started is none."""
    queue = await fed_job(redis, 20)
    first = (await claim(queue, "w1", 4)).claimed
    second = (await claim(queue, "w2", 2)).claimed
    await give_back(queue, "w1", first[1:3], charged=1)
    await finish(queue, "w1", first[3:4])
    again = (await claim(queue, "w3", 1)).claimed  # one of the two given back
    found = await queue.stragglers()
    assert [(s.index, s.holder, s.attempts) for s in found] == [
        (0, "w1", 0), (1, "w3", 1), (2, "", 1), (4, "w2", 0), (5, "w2", 0),
    ]  # fmt: skip
    assert [s.first_ms for s in found] == [first[0].claim] * 3 + [second[0].claim] * 2
    assert again[0].claim != found[1].first_ms
    assert [s.index for s in await queue.stragglers(started_before_ms=second[0].claim, most=2)] == [0, 1]


async def test_a_straggler_that_is_given_up_lets_the_job_end(redis: Redis) -> None:
    """It fails as `cancelled` with the attempt under way counted; the worker's call is cut."""
    stall = {"kind": "stall", "text": "HANGS"}
    async with Standin(latency=0.01, faults=[stall]) as standin, worker(redis, standin.url, slots=4) as one:
        queue = await sealed_job(redis, [chat(i, "HANGS" if i == 3 else "") for i in range(10)], first_alone=0)

        async def nearly() -> bool:
            return (await queue.snapshot()).done == 9

        await wait_until(nearly, description="all but one are done")
        [straggler] = await queue.stragglers()
        assert (straggler.index, await queue.custom_ids([3])) == (3, {3: "c3"})
        reply = await queue.give_up([straggler], "given up in a test")
        assert (reply.new, reply.state) == (1, JobState.COMPLETE)
        assert (await queue.give_up([straggler], "again")).new == 0
        await wait_until(lambda: one.mill.in_flight == 0, description="its call is cut")

        async def returned() -> bool:
            return (await queue.snapshot()).in_flight == 0

        await wait_until(returned, description="nothing is held any more")
        await check_invariants(redis, queue)
    record = (await results(queue))[3]
    assert (record.cls, record.attempts, record.detail.custom_id) == (FailureClass.CANCELLED, 1, "c3")
    assert record.detail.message == "given up in a test"
