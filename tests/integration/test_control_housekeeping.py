"""The reaper and the janitor on real jobs in a real store."""

from __future__ import annotations

import pytest
from tests.support.clock import ManualClock
from tests.support.invariants import check_invariants
from tests.support.leaks import leaks
from tests.support.queues import COLLECTOR, claim, collect_all, fed_job, finish, indices, make_job
from tests.support.wait import wait_until

from gristmill.contract import keys
from gristmill.contract.lifecycle import JobState, PauseReason
from gristmill.contract.manifest import Manifest, Wishes
from gristmill.queue import LeaseQueue, feedstats, registry, wishes
from gristmill.queue.feedstats import FeedStats
from gristmill.queue.replies import Role
from gristmill.queue.wishes import Wish
from gristmilld.control import janitor
from gristmilld.control.janitor import CANCEL_GRACE_S, LOOK_AGAIN_S, Janitor
from gristmilld.control.reaper import GRAVE_VISITED_S, Reaper
from gristmilld.control.storewatch import StoreWatch
from gristmilld.control.wanting import MAX_FAILURES


class House:
    """Reaper and janitor over one store, with a clock that moves only when told."""

    def __init__(self, redis, *, lease_ttl_s: float = 30.0) -> None:
        self.clock = ManualClock()
        self.watch = StoreWatch(self.clock)
        self.reaper = Reaper(redis, self.clock)
        self.janitor = Janitor(redis, self.reaper, self.watch, lease_ttl_s, self.clock)


async def claim_and_expire(redis, job: LeaseQueue, token: str, want: int) -> list[int]:
    """Claim with a lease that has run out by the store's clock when this returns."""
    claimed = (await claim(job, token, want, ttl_ms=1)).claimed
    deadline_ms = (await job.tokens())[token]

    async def passed() -> bool:
        return await registry.now_ms(redis) > deadline_ms

    await wait_until(passed, description="the lease has run out")
    return indices(claimed)


@pytest.fixture
def house(redis):
    return House(redis)


async def test_a_dead_worker_gives_back_what_it_held_in_every_job(redis, house):
    """All tokens of its prefix, in all jobs; a worker whose prefix merely begins alike keeps its own."""
    first, second = await fed_job(redis, 10), await fed_job(redis, 10)
    await claim(first, "d.1.0.1", 4)
    await claim(first, "d.1.0.2", 2)
    await claim(second, "d.1.0.1", 3)
    await claim(first, "d.1.01.1", 1)
    await house.reaper.bury("d.1.0", crashed=False)
    assert set(await first.tokens()) == {"d.1.01.1"}
    assert await second.tokens() == {}
    seen = await first.snapshot()
    assert (seen.in_flight, seen.waiting, seen.suspects) == (1, 6, 0)
    await check_invariants(redis, first)
    await check_invariants(redis, second)


async def test_a_crashed_worker_leaves_suspects(redis, house):
    """Only a crash makes suspects, and telling of it twice changes nothing."""
    job = await fed_job(redis, 10)
    await claim(job, "d.0.0.1", 4)
    await house.reaper.bury("d.0.0", crashed=True)
    await house.reaper.bury("d.0.0", crashed=True)
    assert (await job.snapshot()).suspects == 4
    await check_invariants(redis, job)


async def test_a_paused_and_a_cancelling_job_are_reaped_too(redis, house):
    """What is in flight counts in these states as well."""
    paused, cancelling = await fed_job(redis, 5), await fed_job(redis, 5)
    for job in (paused, cancelling):
        await claim(job, "d.0.0.1", 5)
    await paused.pause(PauseReason.USER, "")
    await cancelling.cancel()
    await house.reaper.bury("d.0.0", crashed=False)
    assert (await paused.snapshot()).in_flight == 0
    assert (await cancelling.snapshot()).in_flight == 0


async def test_what_a_dead_worker_claims_after_its_funeral_comes_back_without_blame(redis, house):
    """Its last call may have lain in the store's buffer; the grave is visited again, for a while."""
    job = await fed_job(redis, 10)
    await house.reaper.bury("d.0.0", crashed=True)
    await claim(job, "d.0.0.7", 3)
    await house.janitor.round()
    seen = await job.snapshot()
    assert (seen.in_flight, seen.waiting, seen.suspects) == (0, 3, 0)
    house.clock.advance(GRAVE_VISITED_S)
    await claim(job, "d.0.0.8", 3)
    await house.janitor.round()
    assert (await job.snapshot()).in_flight == 3


async def test_an_expired_lease_ends_only_once_the_store_has_been_well_for_a_ttl(redis, house):
    """After an outage nobody could renew: a live worker must get its chance first."""
    job = await fed_job(redis, 5)
    await claim_and_expire(redis, job, "other.0.0.1", 5)
    await house.janitor.round()
    assert (await job.snapshot()).in_flight == 5
    house.clock.advance(30)
    await house.janitor.round()
    assert (await job.snapshot()).in_flight == 0
    await check_invariants(redis, job)


async def test_a_store_that_ran_long_before_us_needs_no_wait(redis, house):
    """The wait counts from the start of the store, not from ours."""
    job = await fed_job(redis, 5)
    await claim_and_expire(redis, job, "other.0.0.1", 5)
    house.watch.up_since(3600)
    await house.janitor.round()
    assert (await job.snapshot()).in_flight == 0


async def test_a_cancelled_job_settles_when_nothing_is_in_flight(redis, house):
    """While something is in flight it waits; the last record ends it; no worker looks at it any more."""
    job = await fed_job(redis, 10)
    claimed = (await claim(job, "w.0.0.1", 2)).claimed
    await job.cancel()
    await house.janitor.round()
    assert (await job.snapshot()).state is JobState.CANCELLING
    await finish(job, "w.0.0.1", claimed)
    await house.janitor.round()
    assert (await job.snapshot()).state is JobState.CANCELLED
    assert await registry.runnable(redis) == []
    assert len(await collect_all(job)) == 2
    await check_invariants(redis, job)


async def test_a_cancelled_job_is_settled_by_force_after_the_grace(redis, house):
    """A straggler does not hold up the cancellation for ever."""
    job = await fed_job(redis, 10)
    await claim(job, "w.0.0.1", 2)
    await job.cancel()
    await house.janitor.round()
    house.clock.advance(CANCEL_GRACE_S - 1)
    await house.janitor.round()
    assert (await job.snapshot()).state is JobState.CANCELLING
    house.clock.advance(1)
    await house.janitor.round()
    assert (await job.snapshot()).state is JobState.CANCELLED


async def test_a_job_whose_deadline_has_passed_expires(redis, house):
    """Finished work is kept; a job without a deadline, or with a later one, goes on."""
    late = await fed_job(redis, 5, deadline_ms=1)
    soon = await fed_job(redis, 5, deadline_ms=1 << 50)
    never = await fed_job(redis, 5)
    await house.janitor.round()
    assert (await late.snapshot()).state is JobState.EXPIRED
    assert (await soon.snapshot()).state is JobState.RUNNING
    assert (await never.snapshot()).state is JobState.RUNNING


async def test_a_sweep_frees_the_payload_of_an_ended_job(redis, house):
    """Whoever cancelled it died before the payload was freed."""
    job = await fed_job(redis, 10)
    await job.cancel()
    # what a client that was killed between the two leaves behind
    await redis.hset(job.keys.meta, "state", "cancelled")
    await registry.unmark_runnable(redis, job.job)
    await house.janitor.sweep()
    assert (await job.snapshot()).payload_bytes == 0


async def test_a_sweep_finds_a_job_that_no_worker_can_find(redis, house):
    """A running job whose row among the runnable is missing gets it back."""
    job = await fed_job(redis, 5)
    await registry.unmark_runnable(redis, job.job)
    await house.janitor.sweep()
    assert await registry.runnable(redis) == [job.job]


async def test_a_sweep_completes_a_removal(redis, house):
    """`rm` died half way: nothing of the job is left afterwards."""
    job = await fed_job(redis, 5)
    await redis.hset(job.keys.meta, "state", "deleting")
    await registry.unmark_runnable(redis, job.job)
    await house.janitor.sweep()
    assert [key async for key in redis.scan_iter(match=job.keys.pattern)] == []
    assert await registry.list_jobs(redis) == []


async def test_a_row_of_a_job_that_is_gone_does_not_stay_runnable(redis, house):
    """Workers need not look for it again and again."""
    await registry.mark_runnable(redis, "ghost", 0)
    await house.janitor.round()
    assert await registry.runnable(redis) == []


async def test_complete_jobs_cost_a_sweep_nothing_after_the_first_look(redis, house):
    """A store full of finished jobs is not read over and over; a new incarnation is seen all the same."""
    job = await fed_job(redis, 2)
    await finish(job, "w.0.0.1", (await claim(job, "w.0.0.1")).claimed)
    assert (await job.snapshot()).state is JobState.COMPLETE
    await house.janitor.sweep()
    before = (await redis.info("commandstats")).get("cmdstat_hmget", {}).get("calls", 0)
    await house.janitor.sweep()
    assert (await redis.info("commandstats")).get("cmdstat_hmget", {}).get("calls", 0) == before
    await job.remove()
    manifest = Manifest(job=job.job, epoch="again", name="test", created_at_ms=0)
    again = await LeaseQueue.create(redis, manifest)
    await house.janitor.sweep()
    await registry.unmark_runnable(redis, again.job)
    await house.janitor.sweep()
    assert await registry.runnable(redis) == [again.job]


async def test_two_janitors_at_once_do_no_harm(redis, house):
    """Every daemon keeps house in the same store."""
    other = House(redis)
    job = await fed_job(redis, 20)
    held = await claim_and_expire(redis, job, "w.0.0.1", 7)
    for one in (house, other):
        one.watch.up_since(3600)
    await house.janitor.round()
    await other.janitor.round()
    assert (await job.snapshot()).waiting == len(held)
    await check_invariants(redis, job)


async def test_an_empty_store_needs_nothing(redis, house):
    """No jobs, no work, no error; a job without requests neither."""
    await house.janitor.round()
    await house.janitor.sweep()
    await make_job(redis)
    await house.janitor.round()
    await house.janitor.sweep()


async def ended_job(redis, *, collected: bool = True, **options) -> LeaseQueue:
    """A job of two requests, both answered; `collected`: they lie outside and nobody is at it."""
    job = await fed_job(redis, 2, **options)
    await finish(job, "w.0.0.1", (await claim(job, "w.0.0.1")).claimed)
    await job.reap("w.0.0.1", force=True, crashed=False)
    if collected:
        await collect_all(job)
        await job.release_lease(Role.COLLECTOR, COLLECTOR)
    return job


async def forget_at_ms(redis, job: LeaseQueue) -> int | None:
    [at] = [row.forget_at_ms for row in await registry.list_jobs(redis) if row.job == job.job]
    return at


async def test_an_ended_job_is_forgotten_when_its_time_has_passed(redis, house):
    """Its time counts from the first sweep that sees all its results collected; nothing of it is left."""
    job = await ended_job(redis, keep_ms=300)
    await feedstats.publish(redis, job.job, FeedStats())
    now_ms = await registry.now_ms(redis)
    await house.janitor.sweep()
    at_ms = await forget_at_ms(redis, job)
    assert at_ms is not None
    assert now_ms + 300 <= at_ms <= await registry.now_ms(redis) + 300
    assert (await job.snapshot()).state is JobState.COMPLETE

    async def passed() -> bool:
        return await registry.now_ms(redis) > at_ms

    await wait_until(passed, description="its time has passed")
    await house.janitor.sweep()
    assert await registry.list_jobs(redis) == []
    assert [key async for key in redis.scan_iter(match="gm:*")] == []


@pytest.mark.parametrize("end", ["called", "given up", "a day later"])
async def test_a_job_that_owes_a_call_is_kept_until_then(redis, house, monkeypatch, end: str):
    """However short its time is: until its webhook has taken the call or is given up, at most a day longer."""
    job = await ended_job(redis, keep_ms=0, wishes=Wishes(notify="http://127.0.0.1:9/hook"))
    await house.janitor.sweep()
    at_ms = await forget_at_ms(redis, job)

    async def passed() -> bool:
        return await registry.now_ms(redis) > at_ms + 1

    await wait_until(passed, description="its time has passed")
    await house.janitor.sweep()
    await house.janitor.sweep()
    assert (await job.snapshot()).state is JobState.COMPLETE
    if end == "called":
        await wishes.fulfil(redis, job.job, Wish.NOTIFY)
    elif end == "given up":
        await wishes.postpone(redis, job.job, Wish.NOTIFY, failed=MAX_FAILURES, not_before_ms=0)
    else:
        monkeypatch.setattr(janitor, "OWED_MS", 0)
    await house.janitor.sweep()
    assert await registry.list_jobs(redis) == []


async def test_the_default_time_is_a_week(redis, house):
    """And a job whose time has not passed stays, however often one looks."""
    job = await ended_job(redis)
    for _ in range(3):
        await house.janitor.sweep()
        house.clock.advance(LOOK_AGAIN_S)
    week_ms = 7 * 86_400_000
    at_ms = await forget_at_ms(redis, job)
    assert at_ms is not None
    assert abs(at_ms - week_ms - await registry.now_ms(redis)) < 60_000


@pytest.mark.parametrize("end", ["complete", "cancelled", "expired"])
async def test_results_that_nobody_collected_never_expire(redis, house, end: str):
    """However the job ended, however long ago; once they are collected its time begins."""
    if end == "complete":
        job = await ended_job(redis, collected=False, keep_ms=0)
    else:
        job = await fed_job(redis, 4, keep_ms=0)
        await finish(job, "w.0.0.1", (await claim(job, "w.0.0.1", 1)).claimed)
        await job.reap("w.0.0.1", force=True, crashed=False)
        await (job.cancel() if end == "cancelled" else job.expire())
    assert (await job.snapshot()).state.value == end
    await redis.zadd(keys.JOBS, {job.job: 1})  # whatever the row says
    for _ in range(3):
        await house.janitor.sweep()
        house.clock.advance(LOOK_AGAIN_S)
    assert await forget_at_ms(redis, job) is None
    await collect_all(job)
    await house.janitor.sweep()
    assert await forget_at_ms(redis, job) is None, "its collector is still at it"
    await job.release_lease(Role.COLLECTOR, COLLECTOR)
    for _ in range(2):
        house.clock.advance(LOOK_AGAIN_S)
        await house.janitor.sweep()
    assert await registry.list_jobs(redis) == []


async def test_a_job_that_a_creator_left_half_made_is_kept_and_found(redis, house):
    """It died after the job stood and before it said so: the job must not go with its row's ten minutes."""
    job = await fed_job(redis, 2)
    await registry.unmark_runnable(redis, job.job)
    await redis.zadd(keys.JOBS, {job.job: 1})
    await house.janitor.sweep()
    assert await forget_at_ms(redis, job) is None
    assert await registry.runnable(redis) == [job.job]


async def test_a_row_without_a_job_is_dropped_after_ten_minutes(redis, house):
    """A remover died before its last step; until then the row may belong to a job that is just being made."""
    await registry.keep_job(redis, "ghost")
    await house.janitor.sweep()
    [row] = await registry.list_jobs(redis)
    assert row.forget_at_ms is not None
    assert abs(row.forget_at_ms - registry.ANNOUNCED_MS - await registry.now_ms(redis)) < 60_000
    await redis.zadd(keys.JOBS, {"ghost": 1})
    await house.janitor.sweep()
    assert await registry.list_jobs(redis) == []


async def test_leases_of_lost_hosts_do_not_outlive_their_job(redis, house):
    """The job had ended before its worker's lease ran out: the sweep ends it, where no round looks any more."""
    job = await fed_job(redis, 5)
    await claim_and_expire(redis, job, "other.0.0.1", 5)
    await job.expire()
    house.watch.up_since(3600)
    await house.janitor.sweep()
    assert (await job.tokens(), (await job.snapshot()).in_flight) == ({}, 0)


async def test_the_leak_checker_finds_what_is_nobodys(redis):
    """Whatever a test leaves without an owner or a time to live fails it."""
    job = await fed_job(redis, 5)
    await claim(job, "w.1", 2)
    assert await leaks(redis) == []
    left = {
        job.keys.held("nobody"): "held by a token without a lease",
        job.keys.stage("tok"): "a stage without a time to live",
        job.keys.payload(7): "a run that was not sealed",
        job.keys.block(3): "a result block that no collector would read",
        "gm:{gone}:m": "its job is not listed",
        "gm:ep:pool": "nobody's, and without a time to live",
        job.keys.meta.removesuffix("m") + "zz": "not in the table of keys",
    }
    for key in left:
        await redis.hset(key, "x", 1)
    assert await leaks(redis) == sorted(f"{key}: {why}" for key, why in left.items())
    await redis.unlink(*left)
    await redis.unlink(job.keys.meta)
    assert f"{job.keys.spec}: its job has no hash" in await leaks(redis)
    await redis.flushall()
