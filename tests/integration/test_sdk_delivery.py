"""Results into the caller's hands: acked when handed over, in order or as they come, bounded in memory."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.queues import COLLECTOR, TTL_MS, fed_job, record_of

from gristmill.contract.lifecycle import PauseReason
from gristmill.outlet.errors import CollectorBusyError
from gristmill.queue import LeaseQueue
from gristmill.queue.errors import JobNotFoundError
from gristmill.queue.replies import Finished, Role
from gristmill.sdk import delivery as deliveries
from gristmill.sdk.delivery import Delivered, Delivery
from gristmill.sdk.errors import JobPausedError


async def job_of(redis, n: int, **options) -> LeaseQueue:
    """`n` requests, all in one worker's hands."""
    queue = await fed_job(redis, n, **options)
    await queue.release_lease(Role.COLLECTOR, COLLECTOR)
    claimed: list = []
    while len(claimed) < n:
        reply = await queue.claim("w.0.0.0", n - len(claimed), 1 << 30, TTL_MS, believed=bool(claimed), suspects=True)
        claimed += reply.claimed
    return queue


async def answer(queue: LeaseQueue, *indices: int, size: int = 2) -> None:
    body = b'{"x":"' + b"y" * size + b'"}'
    run = {i: i // 10 for i in indices}
    await queue.commit("w.0.0.0", [Finished(i, run[i], record_of(i, body=body)) for i in indices], [])


async def opened(queue: LeaseQueue, delivered: Delivered | None = None, *, ordered: bool, trouble=lambda: None):
    delivery = Delivery(
        queue, delivered or Delivered(), ordered=ordered, trouble=trouble, answered=lambda: None, holder="test"
    )
    await delivery.open()
    return delivery


async def take_all(delivery: Delivery) -> list[int]:
    found: list[int] = []
    while batch := await delivery.next():
        delivery.handed = len(batch)
        found += [result.index for result in batch]
    return found


@pytest.mark.parametrize("ordered", [True, False])
async def test_every_result_comes_once_and_nothing_is_left(redis, ordered):
    """In order, or as they come; afterwards the store holds no record."""
    queue = await job_of(redis, 30)
    backwards = list(reversed(range(30)))
    await answer(queue, *backwards)
    delivery = await opened(queue, ordered=ordered)
    found = await take_all(delivery)
    assert sorted(found) == list(range(30))
    assert not ordered or found == sorted(found)
    snapshot = await queue.snapshot()
    assert (snapshot.acked, snapshot.results_bytes) == (30, 0)
    await delivery.close()
    assert (await queue.snapshot()).collector is None


async def test_a_damaged_result_is_one_failure(redis):
    """All others come, and nothing is left in the store."""
    queue = await job_of(redis, 10)
    await answer(queue, *range(10))
    await redis.hset(queue.keys.block(4 // queue.block_size), "4", b"\x01?")
    delivery = await opened(queue, ordered=True)
    found = await delivery.next()
    assert [(r.index, r.error.code) for r in found if r.error] == [(4, "transient")]
    delivery.handed = len(found)
    assert await delivery.next() == []
    assert (await queue.snapshot()).acked == 10
    await delivery.close()


async def test_in_order_a_result_waits_for_those_before_it(redis):
    """What came early is held, and nothing is acked before it was handed over."""
    queue = await job_of(redis, 4)
    await answer(queue, 1, 2, 3)
    delivery = await opened(queue, ordered=True)
    waiting = asyncio.create_task(delivery.next())
    await asyncio.sleep(0.1)  # long enough for several looks; that nothing comes can't be waited for otherwise
    assert not waiting.done()
    assert (await queue.snapshot()).acked == 0
    await answer(queue, 0)
    assert [r.index for r in await waiting] == [0, 1, 2, 3]
    await delivery.close()


async def test_what_was_not_handed_over_is_still_there(redis):
    """A reader that stops in the middle of a batch acks what it had; the next reader gets the rest."""
    queue = await job_of(redis, 10)
    await answer(queue, *range(10))
    delivered = Delivered()
    first = await opened(queue, delivered, ordered=True)
    assert len(await first.next()) == 10
    first.handed = 3
    await first.close()
    assert await first.next() == []
    assert (await queue.snapshot()).acked == 3
    again = await opened(queue, delivered, ordered=True)
    assert await take_all(again) == list(range(3, 10))
    assert delivered.count == 10
    await again.close()
    await again.close()


async def test_a_store_that_lost_its_latest_acks_repeats_nothing(redis):
    """Records of results that the caller has had are acked again, unseen."""
    queue = await job_of(redis, 10)
    await answer(queue, *range(10))
    delivered = Delivered()
    for index in range(5):
        delivered.add(index)
    delivery = await opened(queue, delivered, ordered=True)
    assert await take_all(delivery) == list(range(5, 10))
    assert (await queue.snapshot()).acked == 10
    await delivery.close()


@pytest.mark.parametrize("ordered", [True, False])
async def test_what_waits_for_its_turn_is_bounded_in_memory(redis, monkeypatch, ordered):
    """Beyond the bound, results stay in the store and are read when there is room; all come, in order."""
    monkeypatch.setattr(deliveries, "HOLD_BYTES", 30_000)
    monkeypatch.setattr(deliveries, "READ_BYTES", 10_000)
    monkeypatch.setattr(deliveries, "BATCH", 5)
    queue = await job_of(redis, 200)
    await answer(queue, *range(100, 200), size=1000)
    delivery = await opened(queue, ordered=ordered)
    if ordered:
        head = asyncio.create_task(delivery.next())
        await asyncio.sleep(0.2)  # it reads what it may, and must then rest
        assert 0 < delivery._held_bytes <= 45_000
        for start in range(90, -1, -10):
            await answer(queue, *range(start, start + 10), size=1000)
        delivery.handed = len(await head)
        assert delivery.handed
        found = list(range(delivery.handed)) + await take_all(delivery)
        assert found == list(range(200))
    else:
        await answer(queue, *range(100), size=1000)
        assert sorted(await take_all(delivery)) == list(range(200))
    assert (await queue.snapshot()).acked == 200
    await delivery.close()


async def test_a_cancelled_job_ends_with_what_is_there(redis):
    """With gaps where requests were never sent."""
    queue = await job_of(redis, 10)
    await answer(queue, 2, 5)
    await queue.cancel()
    await queue.settle(force=True)
    delivery = await opened(queue, ordered=True)
    assert await take_all(delivery) == [2, 5]
    await delivery.close()


async def test_a_paused_job_hands_over_what_it_has_then_says_why(redis):
    """The user's own pause is only waited out; after `resume` the reader goes on."""
    queue = await job_of(redis, 10)
    await answer(queue, 0, 1)
    await queue.reap("w.0.0.0", force=True, crashed=False)
    await queue.pause(PauseReason.CONFIG, "the key is refused")
    delivery = await opened(queue, ordered=True)
    assert [r.index for r in await delivery.next()] == [0, 1]
    delivery.handed = 2
    with pytest.raises(JobPausedError, match=r"paused \(config\): the key is refused; mend it and call resume"):
        await delivery.next()
    await queue.resume()
    await queue.pause(PauseReason.USER, "")
    waiting = asyncio.create_task(delivery.next())
    await asyncio.sleep(0.2)  # longer than it takes to find the pause
    assert not waiting.done()
    await queue.resume()
    await answer(queue, 2)
    assert [r.index for r in await waiting] == [2]
    await delivery.close()


async def test_trouble_is_told_when_nothing_is_left_to_hand_over(redis):
    """Answers that have been paid for come first."""
    queue = await job_of(redis, 3)
    await answer(queue, 0)

    def trouble() -> None:
        raise RuntimeError("planned")

    delivery = await opened(queue, ordered=True, trouble=trouble)
    assert len(await delivery.next()) == 1
    with pytest.raises(RuntimeError, match="planned"):
        await delivery.next()
    await delivery.close()


async def test_one_collector_at_a_time_and_a_removed_job_is_gone(redis):
    """The lease is refused while another holds it; a job that was removed raises."""
    queue = await job_of(redis, 3)
    delivery = await opened(queue, ordered=True)
    with pytest.raises(CollectorBusyError):
        await opened(queue, ordered=True)
    await queue.remove()
    with pytest.raises(JobNotFoundError):
        await delivery.next()
    await delivery.close()


def test_delivered_counts_each_once():
    """By one bit each, however far apart."""
    delivered = Delivered()
    for index in (0, 7, 8, 100_000, 7):
        delivered.add(index)
    assert delivered.count == 4
    assert [i for i in (0, 1, 7, 8, 99_999, 100_000, 10**9) if i in delivered] == [0, 7, 8, 100_000]


async def test_only_unseen_records_are_read(redis):
    """What is held is not sent again; a block below the bound is not looked at; a record too many waits."""
    queue = await job_of(redis, 40)
    await answer(queue, *range(0, 40, 2), size=100)
    first = await queue.read_unseen({}, 1 << 20)
    seen = {block: set(records) for block, records in first.items()}
    assert sorted(i for s in seen.values() for i in s) == list(range(0, 40, 2))
    assert await queue.read_unseen(seen, 1 << 20) == {}
    await answer(queue, 1, 39, size=100)
    assert {b: set(r) for b, r in (await queue.read_unseen(seen, 1 << 20)).items()} == {0: {1}, 4: {39}}
    assert set(await queue.read_unseen(seen, 1 << 20, below=4)) == {0}
    some = await queue.read_unseen({}, 300)
    assert 1 <= sum(map(len, some.values())) <= 4
    assert 0 in some
