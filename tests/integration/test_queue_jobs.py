"""Jobs as a whole: creation, leases of feeder and collector, control, removal, and the lists that find them."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis
from tests.support.invariants import check_invariants
from tests.support.queues import (
    COLLECTOR,
    FEEDER,
    TTL_MS,
    claim,
    collect_all,
    fed_job,
    feed,
    finish,
    give_back,
    make_job,
)
from tests.support.wait import wait_until

from gristmill.contract import keys
from gristmill.contract.lifecycle import PauseReason
from gristmill.contract.manifest import Manifest
from gristmill.queue import JobExistsError, JobNotFoundError, LeaseQueue, registry
from gristmill.queue.registry import DaemonInfo
from gristmill.queue.replies import Role, Run


def manifest(epoch: str = "e", **options: object) -> Manifest:
    return Manifest(job="j", epoch=epoch, name="n", created_at_ms=0, **options)


async def test_creating_the_same_job_twice_is_once(redis: Redis):
    """The reply of the first call may have been lost; another incarnation of the id is refused."""
    first = await LeaseQueue.create(redis, manifest())
    await first.pause(PauseReason.USER, "")
    again = await LeaseQueue.create(redis, manifest())
    assert (await again.snapshot()).state == "paused"
    with pytest.raises(JobExistsError, match="already in this store"):
        await LeaseQueue.create(redis, manifest("other"))


@pytest.mark.parametrize("block_size", [0, 4, 12, 4008])
async def test_a_block_size_that_cannot_work_is_refused(redis: Redis, block_size: int):
    """Before anything is written."""
    with pytest.raises(ValueError, match="block_size"):
        await LeaseQueue.create(redis, manifest(block_size=block_size))
    assert await redis.dbsize() == 0


async def test_attach_finds_what_was_created(redis: Redis):
    """Manifest, epoch and block size come from the store."""
    made = manifest(block_size=64, model="m")
    await LeaseQueue.create(redis, made)
    queue = await LeaseQueue.attach(redis, "j")
    assert (queue.job, queue.epoch, queue.block_size) == ("j", "e", 64)
    assert await queue.manifest() == made
    assert "LeaseQueue(job='j'" in repr(queue)


async def test_what_is_not_there_says_so(redis: Redis):
    """Attach, snapshot and leases raise; what a worker or feeder does in a loop answers GONE."""
    with pytest.raises(JobNotFoundError, match="no job 'j'"):
        await LeaseQueue.attach(redis, "j")
    queue = await fed_job(redis, 10)
    claimed = (await claim(queue, "w", 2)).claimed
    await queue.remove()
    with pytest.raises(JobNotFoundError):
        await queue.snapshot()
    with pytest.raises(JobNotFoundError):
        await queue.manifest()
    with pytest.raises(JobNotFoundError):
        await queue.take_lease(Role.FEEDER, "f", "me", TTL_MS)
    await queue.release_lease(Role.FEEDER, "f")
    run = Run(run=0, first=0, count=1, bytes=1, fields=1, cursor=b"")
    replies = [
        await queue.seal(FEEDER, run),
        await queue.close(0, 0),
        await claim(queue, "w"),
        await finish(queue, "w", claimed),
        await queue.renew("w", TTL_MS),
        await queue.reap("w", force=True, crashed=True),
        await queue.ack(COLLECTOR, {0: [0]}),
        await queue.resume(),
        await queue.cancel(),
    ]
    assert {reply.status.value for reply in replies} == {"GONE"}
    assert await queue.reap_expired() == 0
    assert await redis.dbsize() == 0, "a call on a removed job must leave nothing behind"


async def test_removal_leaves_no_key_of_the_job_and_every_key_of_others(redis: Redis):
    """Whatever state it is in: payload, records, leases, stages and rows go, and it may be done again."""
    other = await fed_job(redis, 10)
    queue = await fed_job(redis, 2000, per_run=100)
    await queue.stage("stray", {"1": b"x"})
    claimed = (await claim(queue, "w", 900)).claimed
    await finish(queue, "w", claimed)
    await claim(queue, "w2", 3)
    await queue.remove()
    await queue.remove()
    assert [k async for k in redis.scan_iter(match=queue.keys.pattern)] == []
    assert [row.job for row in await registry.list_jobs(redis)] == [other.job]
    assert await registry.runnable(redis) == [other.job]
    assert len((await claim(other, "w")).claimed) == 10


async def test_removing_an_old_incarnation_spares_the_new_one(redis: Redis):
    """The epoch is checked before anything is unlinked."""
    old = await LeaseQueue.create(redis, manifest("old"))
    await old.remove()
    new = await LeaseQueue.create(redis, manifest("new"))
    await old.remove()
    assert (await new.snapshot()).state == "running"


async def test_a_run_that_does_not_follow_is_a_gap(redis: Redis):
    """By its number or by its first index; one that is there is a duplicate. The cursor says where to go on."""
    queue = await make_job(redis)
    await feed(queue, 0, 0, 10)
    for run, first in ((2, 10), (1, 11), (1, 9)):
        reply = await feed(queue, run, first, 5)
        assert (reply.status, reply.sealed_runs, reply.cursor) == ("GAP", 1, b"10")
    reply = await feed(queue, 0, 0, 10)
    assert (reply.status, reply.cursor) == ("DUP", b"10")
    await queue.close(1, 10)
    assert (await feed(queue, 1, 10, 5)).status == "CLOSED"


async def test_one_feeder_at_a_time(redis: Redis):
    """A second feeder is told who is at work; once the lease has run out it takes over, and the first is refused."""
    queue = await make_job(redis, leases=False)
    assert (await feed(queue, 0, 0, 1)).status == "LOST"
    assert (await queue.take_lease(Role.FEEDER, FEEDER, "host-1 pid 7", TTL_MS)).granted
    assert (await queue.take_lease(Role.FEEDER, FEEDER, "host-1 pid 7", TTL_MS)).granted
    other = await queue.take_lease(Role.FEEDER, "second", "host-2 pid 8", TTL_MS)
    assert (other.granted, other.holder) == (False, "host-1 pid 7")
    assert 0 < other.expires_in_ms <= TTL_MS
    assert not await queue.renew_lease(Role.FEEDER, "second", TTL_MS)
    assert await queue.renew_lease(Role.FEEDER, FEEDER, 0)
    seen = await queue.snapshot()
    assert (seen.feeder, seen.feeder_lost) == (None, True)
    assert (await queue.take_lease(Role.FEEDER, "second", "host-2 pid 8", TTL_MS)).granted
    assert (await feed(queue, 0, 0, 1)).status == "LOST"
    assert (await queue.snapshot()).feeder.holder == "host-2 pid 8"


async def test_a_lease_that_ran_out_is_still_its_holders_until_another_takes_it(redis: Redis):
    """Who was stalled and comes back in time goes on."""
    queue = await make_job(redis)
    await queue.renew_lease(Role.FEEDER, FEEDER, 0)
    assert (await feed(queue, 0, 0, 1)).status == "OK"
    assert await queue.renew_lease(Role.FEEDER, FEEDER, TTL_MS)


async def test_feeder_lost_is_said_only_where_it_matters(redis: Redis):
    """Not before a feeder began, nor after the close; after a release without a close it is."""
    queue = await make_job(redis, leases=False)
    assert not (await queue.snapshot()).feeder_lost
    await queue.take_lease(Role.FEEDER, FEEDER, "me", TTL_MS)
    assert not (await queue.snapshot()).feeder_lost
    await queue.release_lease(Role.FEEDER, FEEDER)
    assert (await queue.snapshot()).feeder_lost
    await queue.close(0, 0)
    assert not (await queue.snapshot()).feeder_lost


async def test_a_collector_is_taken_over_only_by_force(redis: Redis):
    """And whoever lost the lease frees nothing more."""
    queue = await fed_job(redis, 10)
    await finish(queue, "w", (await claim(queue, "w")).claimed)
    assert not (await queue.take_lease(Role.COLLECTOR, "two", "you", TTL_MS)).granted
    assert (await queue.take_lease(Role.COLLECTOR, "two", "you", TTL_MS, force=True)).granted
    assert (await queue.ack(COLLECTOR, {0: [1]})).status == "LOST"
    assert sorted(await collect_all(queue, "two")) == list(range(10))


async def test_a_whole_block_of_any_size_is_acked_at_once(redis: Redis):
    """More indices than a script may pass on at once: every one is freed and has its acked bit."""
    queue = await fed_job(redis, 2_100, per_run=700, block_size=4000)
    for _ in range(3):
        await finish(queue, "w", (await claim(queue, "w", 700)).claimed)
    reply = await queue.ack(COLLECTOR, {0: list(range(2_100))})
    assert (reply.acked, reply.unknown) == (2_100, 0)
    assert await redis.bitcount(queue.keys.acked) == 2_100
    await check_invariants(redis, queue)


async def test_an_ack_of_what_is_not_done_frees_nothing(redis: Redis):
    """After a lost suffix a collector may ack what the store does not know: it is counted, and will be done again."""
    queue = await fed_job(redis, 10)
    claimed = (await claim(queue, "w")).claimed
    await finish(queue, "w", claimed[:2])
    reply = await queue.ack(COLLECTOR, {0: [0, 1, 2]})
    assert (reply.acked, reply.unknown) == (2, 1)
    await check_invariants(redis, queue)
    await finish(queue, "w", claimed[2:])
    assert sorted(await collect_all(queue)) == list(range(2, 10))


async def test_reading_is_bounded_and_pages_without_a_lease(redis: Redis):
    """A collector gets about what it asked for, also of one large block; a reader without the lease pages through."""
    queue = await fed_job(redis, 40, leases=True)
    await finish(queue, "w", (await claim(queue, "w")).claimed)
    assert sorted(await queue.read_blocks(1)) == [0]
    assert len((await queue.read_blocks(1))[0]) == 1
    assert len(await queue.read_blocks(2500)) == 2
    after, paged = -1, []
    while blocks := await queue.read_blocks(1, after=after):
        paged += [i for records in blocks.values() for i in records]
        after = max(blocks)
    assert sorted(paged) == list(range(40))


async def test_expiry_keeps_what_is_done_and_frees_the_rest(redis: Redis):
    """A deadline ends the job at once: no claim, no record of what was in flight, but the finished ones are kept."""
    queue = await fed_job(redis, 500, per_run=2)
    claimed = (await claim(queue, "w", 10)).claimed
    await finish(queue, "w", claimed[:4])
    assert (await queue.expire()).state == "expired"
    seen = await queue.snapshot()
    assert (seen.payload_bytes, seen.done) == (0, 4)
    late = await finish(queue, "w", claimed[4:])
    assert (late.status, late.new, late.state) == ("ENDED", 0, "expired")
    assert (await queue.snapshot()).in_flight == 0
    assert sorted(await collect_all(queue)) == [0, 1, 2, 3]
    assert await registry.runnable(redis) == []


async def test_nothing_is_handed_out_after_the_deadline(redis: Redis):
    """Also before anybody has ended the job; what was claimed in time may still be answered for a moment."""
    now_ms = await registry.now_ms(redis)
    queue = await fed_job(redis, 10, deadline_ms=now_ms + 300)
    claimed = (await claim(queue, "w", 4)).claimed
    assert len(claimed) == 4

    async def passed() -> bool:
        return await registry.now_ms(redis) >= now_ms + 300

    await wait_until(passed, description="the deadline has passed")
    assert (await claim(queue, "w", 4)).status == "EMPTY"
    seen = await queue.snapshot()
    assert (seen.state, seen.deadline_ms, seen.is_late) == ("running", now_ms + 300, False)
    assert (await finish(queue, "w", claimed)).new == 4

    async def late() -> bool:
        return (await queue.snapshot()).is_late

    await wait_until(late, description="the moment for late arrivals is over")


async def test_the_first_claim_is_remembered_whatever_happens_since(redis: Redis):
    """Returns, reaps and crashes keep the time of the first claim, from which the age of a request counts."""
    queue = await fed_job(redis, 3)
    first = (await claim(queue, "w1", 3)).claimed
    assert {c.age_ms for c in first} == {0}
    await give_back(queue, "w1", first[:1])
    await give_back(queue, "w1", first[1:2], charged=1)
    await queue.reap("w1", force=True, crashed=False)
    for token, crashed in (("w2", False), ("w3", True)):
        again = (await claim(queue, token, 3)).claimed
        assert [c.first_ms for c in again] == [first[0].claim] * 3
        await queue.reap(token, force=True, crashed=crashed)
    suspects = (await claim(queue, "w4", 3, suspects=True)).claimed
    assert {c.first_ms for c in suspects} == {first[0].claim}
    assert all(c.age_ms == c.claim - first[0].claim for c in suspects)


async def test_settle_frees_what_a_dead_caller_left(redis: Redis):
    """A job ended by a worker's last return still holds its payload until somebody settles it."""
    queue = await fed_job(redis, 30)
    claimed = (await claim(queue, "w", 1)).claimed
    await queue.cancel()
    assert (await finish(queue, "w", claimed)).state == "cancelled"
    assert (await queue.snapshot()).payload_bytes > 0
    await queue.settle()
    assert (await queue.snapshot()).payload_bytes == 0


async def test_the_last_answer_while_cancelling_may_still_complete_the_job(redis: Redis):
    """Everything was answered after all."""
    queue = await fed_job(redis, 10)
    claimed = (await claim(queue, "w")).claimed
    await queue.cancel()
    assert (await finish(queue, "w", claimed)).state == "complete"


async def test_times_are_the_stores(redis: Redis):
    """Created, started and finished are set once each, in order."""
    queue = await fed_job(redis, 10)
    seen = await queue.snapshot()
    assert (seen.started_at_ms, seen.finished_at_ms) == (0, 0)
    await finish(queue, "w", (await claim(queue, "w")).claimed)
    seen = await queue.snapshot()
    assert 0 < seen.created_at_ms <= seen.started_at_ms <= seen.finished_at_ms <= seen.now_ms


async def test_runnable_jobs_come_by_priority(redis: Redis):
    """Highest first; an ended one is not among them, a resumed one is again."""
    for job, priority in (("a", 0), ("b", 5), ("c", 0)):
        await LeaseQueue.create(redis, Manifest(job=job, epoch=job, name=job, created_at_ms=0, priority=priority))
    assert await registry.runnable(redis) == ["b", "a", "c"]
    queue = await LeaseQueue.attach(redis, "a")
    await queue.close(0, 0)
    await queue.commit("w", [], [])
    assert await registry.runnable(redis) == ["b", "c"]
    paused = await LeaseQueue.attach(redis, "c")
    await registry.unmark_runnable(redis, "c")
    await paused.pause(PauseReason.USER, "")
    await paused.resume()
    assert await registry.runnable(redis) == ["b", "c"]


async def test_rows_of_jobs_that_never_came_are_dropped(redis: Redis):
    """After ten minutes and no sooner; one whose job stands is not touched."""
    await registry.announce_job(redis, "young")
    await redis.zadd(keys.JOBS, {"old": 1, "stands": 1})
    await LeaseQueue.create(redis, Manifest(job="stands", epoch="e", name="n", created_at_ms=0))
    await redis.zadd(keys.JOBS, {"stands": 1})
    assert await registry.tidy_jobs(redis) == ["old"]
    assert {row.job for row in await registry.list_jobs(redis)} == {"young", "stands"}


async def test_daemons_are_listed_while_they_live(redis: Redis):
    """By pool; one that says nothing for its time to live is gone, one that stops is gone at once."""

    def info(daemon_id: str, pool: str = "default") -> DaemonInfo:
        return DaemonInfo(
            daemon_id=daemon_id, host="h", pid=1, version="1", pool=pool, workers=2, slots=128, started_at_ms=5
        )

    await registry.register_daemon(redis, info("b"), 60)
    await registry.register_daemon(redis, info("a", pool="gpu"), 60)
    await registry.register_daemon(redis, info("dies"), 0.001)
    await asyncio.sleep(0.01)  # the store's own clock has to pass it
    assert await registry.live_daemons(redis) == [info("a", pool="gpu"), info("b")]
    assert await registry.live_daemons(redis, "gpu") == [info("a", pool="gpu")]
    await registry.forget_daemon(redis, "b")
    assert await registry.live_daemons(redis, "default") == []
