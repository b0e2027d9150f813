"""What a worker sees of the queue: claims, limits, suspects, leases, records."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis
from tests.support.invariants import check_invariants
from tests.support.queue_model import DEATHS_ALONE
from tests.support.queues import (
    TTL_MS,
    claim,
    fed_job,
    feed,
    finish,
    frame,
    give_back,
    indices,
    make_job,
    record_of,
)

from gristmill.contract.failure import FailureClass
from gristmill.contract.lifecycle import PauseReason
from gristmill.queue import LeaseQueue
from gristmill.queue.replies import Finished, Returned


async def test_fresh_indices_come_in_order_with_their_runs(redis: Redis):
    """Claims walk the runs; what is claimed has its payload."""
    queue = await fed_job(redis, 25)
    first, second = await claim(queue, "w1", 12), await claim(queue, "w2", 100)
    assert indices(first.claimed) + indices(second.claimed) == list(range(25))
    assert [c.run for c in second.claimed] == [1] * 8 + [2] * 5
    assert await queue.fetch(second.claimed[::-1]) == [frame(i) for i in range(24, 11, -1)]
    assert (await claim(queue, "w3")).status == "EMPTY"


async def test_pictures_are_fetched_by_run_and_freed_with_its_last_frame(redis: Redis):
    """Frames go one by one as records come, pictures when nobody in the run needs them any more."""
    queue = await make_job(redis)
    await feed(queue, 0, 0, 3, images=2)
    claimed = (await claim(queue, "w")).claimed
    await finish(queue, "w", claimed[:2])
    assert await queue.fetch(claimed) == [None, None, frame(2)]
    digests = [f"{k:032x}" for k in range(2)]
    assert await queue.fetch_images(0, [*digests, "no"]) == [b"p" * 50, b"p" * 50, None]
    assert await queue.fetch_images(0, []) == []
    await finish(queue, "w", claimed[2:])
    assert await queue.fetch_images(0, digests) == [None, None]
    assert (await queue.snapshot()).payload_bytes == 0


async def test_a_byte_budget_bounds_a_claim_but_never_to_nothing(redis: Redis):
    """About so many bytes by the average of each run; a request larger than the budget still goes out."""
    queue = await make_job(redis)
    await feed(queue, 0, 0, 10, size=898)  # 900 bytes and 100 for the field
    await feed(queue, 1, 10, 10, size=9897)
    assert len((await claim(queue, "w", max_bytes=3500)).claimed) == 3
    assert len((await claim(queue, "w", max_bytes=1)).claimed) == 1
    rest = (await claim(queue, "w", max_bytes=6000 + 25_000)).claimed
    assert [c.run for c in rest] == [0] * 6 + [1, 1]
    await give_back(queue, "w", rest[:6])
    again = (await claim(queue, "w", max_bytes=4500)).claimed
    assert [c.run for c in again] == [0] * 4


async def test_a_job_keeps_to_its_own_limit_in_flight(redis: Redis):
    """`max_in_flight` holds over all workers, retries included."""
    queue = await fed_job(redis, 30, max_in_flight=5)
    got = (await claim(queue, "w1", 3)).claimed
    assert len((await claim(queue, "w2", 30)).claimed) == 2
    assert (await claim(queue, "w1", 30)).status == "EMPTY"
    await give_back(queue, "w1", got)
    assert len((await claim(queue, "w2", 30)).claimed) == 3


async def test_the_first_requests_go_alone_until_the_setup_is_proven(redis: Redis):
    """At most F requests, all with one worker, until a record says that the setup works; bad input says nothing."""
    queue = await fed_job(redis, 30, first_alone=4)
    first = await claim(queue, "w1", 30)
    assert (len(first.claimed), first.alone) == (4, True)
    other = await claim(queue, "w2", 30)
    assert (other.status, other.alone) == ("EMPTY", True)
    await finish(queue, "w1", first.claimed[:1], FailureClass.BAD_INPUT)
    assert (await claim(queue, "w2", 30)).status == "EMPTY"
    assert len((await claim(queue, "w1", 30)).claimed) == 1
    assert not (await queue.snapshot()).proven
    await finish(queue, "w1", first.claimed[1:2], FailureClass.CONTEXT_LENGTH)
    reply = await claim(queue, "w2", 30)
    assert (len(reply.claimed), reply.alone) == (25, False)


async def test_resume_asks_for_a_new_proof(redis: Redis):
    """After a pause the setup may be another one."""
    queue = await fed_job(redis, 30, first_alone=2)
    await finish(queue, "w", (await claim(queue, "w")).claimed)
    await queue.pause(PauseReason.CONFIG, "wrong URL")
    await queue.resume()
    reply = await claim(queue, "w", 30)
    assert (len(reply.claimed), reply.alone) == (2, True)


async def test_results_above_the_mark_hold_back_fresh_work_only(redis: Redis):
    """Retries still flow, so that what was begun can end; the reply says why nothing fresh came."""
    queue = await fed_job(redis, 30, results_mark_bytes=100)
    claimed = (await claim(queue, "w", 10)).claimed
    await give_back(queue, "w", claimed[:2])
    await finish(queue, "w", claimed[2:])
    reply = await claim(queue, "w", 10)
    assert (indices(reply.claimed), reply.results_full) == ([0, 1], True)
    assert (await claim(queue, "w", 10)).status == "EMPTY"


async def test_a_delay_is_kept(redis: Redis):
    """What goes back with a delay is not handed out before it is over; fresh work is."""
    queue = await fed_job(redis, 10)
    claimed = (await claim(queue, "w", 5)).claimed
    await give_back(queue, "w", claimed, delay_ms=60_000, charged=2)
    assert indices((await claim(queue, "w", 10)).claimed) == [5, 6, 7, 8, 9]
    await redis.zadd(queue.keys.waiting, {"3": 1}, xx=True)
    (back,) = (await claim(queue, "w", 10)).claimed
    assert (back.index, back.attempts) == (3, 2)


async def test_only_the_first_record_is_kept_whoever_sends_it(redis: Redis):
    """A zombie's paid answer counts when nobody else has answered, and is ignored when somebody has."""
    queue = await fed_job(redis, 10)
    claimed = (await claim(queue, "old", 2)).claimed
    await queue.reap("old", force=True, crashed=False)
    (again,) = (await claim(queue, "new", 1)).claimed
    late = await finish(queue, "old", claimed)
    assert (late.new, late.dup, late.stale) == (2, 0, 0)
    reply = await queue.commit("new", [Finished(again.index, again.run, record_of(again.index, body=b"[2]"))], [])
    assert (reply.new, reply.dup) == (0, 1)
    assert (await queue.read_blocks(1 << 20))[0][again.index] == record_of(again.index)
    assert (await queue.snapshot()).in_flight == 0
    await check_invariants(redis, queue)


async def test_a_late_record_leaves_waiting_whatever_else_the_batch_holds(redis: Redis):
    """One batch with an index that is held but was answered by another, and one that was taken away and waits."""
    queue = await fed_job(redis, 10)
    (taken,) = (await claim(queue, "w1", 1)).claimed
    await queue.reap("w1", force=True, crashed=False)
    await redis.zadd(queue.keys.waiting, {str(taken.index): TTL_MS * 10**6})
    (held,) = (await claim(queue, "w1", 1)).claimed
    await finish(queue, "other", [held])
    reply = await finish(queue, "w1", [held, taken])
    assert (reply.new, reply.dup) == (1, 1)
    await check_invariants(redis, queue)


async def test_a_late_record_of_a_suspect_ends_the_suspicion(redis: Redis):
    """A worker that was given up comes back with its answer: the index is done, and is in no queue."""
    queue = await fed_job(redis, 10)
    claimed = (await claim(queue, "w", 2)).claimed
    await queue.reap("w", force=True, crashed=True)
    assert (await finish(queue, "w", claimed)).new == 2
    assert (await queue.snapshot()).suspects == 0
    await check_invariants(redis, queue)


async def test_a_done_index_is_never_handed_out(redis: Redis):
    """Records sent again after a lost suffix may lie before the hand-out position, or among what is due."""
    queue = await fed_job(redis, 20)
    due = (await claim(queue, "w", 2)).claimed
    await give_back(queue, "w", due)
    ahead = [Finished(i, i // 10, record_of(i)) for i in (3, 5, 6, 12)]
    assert (await queue.commit("again", ahead, [])).new == 4
    await redis.setbit(queue.keys.done, 1, 1)
    got = indices((await claim(queue, "w", 20)).claimed)
    assert got == [0, 2, 4, 7, 8, 9, 10, 11, *range(13, 20)]


async def test_indices_that_the_store_does_not_have_are_counted_and_not_kept(redis: Redis):
    """They were sealed in a suffix that is lost: the feeder will seal them again."""
    queue = await fed_job(redis, 10, close=False)
    reply = await queue.commit("w", [Finished(i, i // 10, record_of(i)) for i in (9, 10, 500)], [])
    assert (reply.new, reply.ahead) == (1, 2)
    await check_invariants(redis, queue, lost_suffix=True)


async def test_counters_come_from_the_records_themselves(redis: Redis):
    """Failed by class, attempts and tokens are what the headers of the kept records say."""
    queue = await fed_job(redis, 10)
    claimed = (await claim(queue, "w")).claimed
    await finish(queue, "w", claimed[:4])
    await finish(queue, "w", claimed[4:6], FailureClass.TIMEOUT)
    await finish(queue, "w", claimed[:6], FailureClass.POISON)
    await finish(queue, "w", claimed[6:7], FailureClass.CONTENT_FILTER)
    seen = await queue.snapshot()
    assert (seen.done, seen.failed, seen.ok, seen.dup) == (7, 3, 4, 6)
    assert seen.by_class == {FailureClass.TIMEOUT: 2, FailureClass.CONTENT_FILTER: 1}
    assert (seen.attempts, seen.prompt_tokens, seen.completion_tokens) == (7, 21, 35)


async def test_a_failure_budget_pauses_the_job(redis: Redis):
    """At the limit the job pauses and says so; a resume counts anew."""
    queue = await fed_job(redis, 30, max_failures=3)
    claimed = (await claim(queue, "w")).claimed
    assert (await finish(queue, "w", claimed[:2], FailureClass.TIMEOUT)).state == "running"
    assert (await finish(queue, "w", claimed[2:3], FailureClass.TIMEOUT)).state == "paused"
    seen = await queue.snapshot()
    assert (seen.reason, seen.detail) == (PauseReason.BUDGET, "3 requests have failed, the limit is 3")
    assert (await queue.resume()).state == "running"
    assert (await finish(queue, "w", claimed[3:5], FailureClass.TIMEOUT)).state == "running"
    assert (await finish(queue, "w", claimed[5:6], FailureClass.TIMEOUT)).state == "paused"


async def test_a_share_of_failures_pauses_the_job_once_a_hundred_are_done(redis: Redis):
    """A few early failures are no share."""
    queue = await fed_job(redis, 300, per_run=100, max_failures_percent=2.5)
    claimed = (await claim(queue, "w", 300)).claimed
    await finish(queue, "w", claimed[:3], FailureClass.TIMEOUT)
    assert (await finish(queue, "w", claimed[3:99])).state == "running"
    assert (await finish(queue, "w", claimed[99:100])).state == "paused"
    assert (await queue.snapshot()).detail == "3 of 100 requests have failed, the limit is 2.5 %"


async def test_a_job_that_ends_over_its_budget_is_complete(redis: Redis):
    """There is nothing left to pause."""
    queue = await fed_job(redis, 10, max_failures=3)
    reply = await finish(queue, "w", (await claim(queue, "w")).claimed, FailureClass.TIMEOUT)
    assert (reply.state, reply.complete) == ("complete", True)


async def test_missing_payload_pauses_the_job_and_is_counted(redis: Redis):
    """It can only come from outside: the index waits, a person looks, nothing is released in silence."""
    queue = await fed_job(redis, 10)
    claimed = (await claim(queue, "w", 2)).claimed
    await redis.hdel(queue.keys.payload(0), "0")
    assert await queue.fetch(claimed) == [None, frame(1)]
    reply = await queue.commit("w", [], [Returned(0, claimed[0].claim, 5000, 0, missing=True)])
    assert reply.state == "paused"
    seen = await queue.snapshot()
    assert (seen.reason, seen.missing, seen.waiting) == (PauseReason.STORE, 1, 1)
    assert seen.detail == "1 claimed requests had no payload in the store"


async def test_missing_payload_of_a_done_index_is_dropped(redis: Redis):
    """Somebody else answered meanwhile, which freed the frame: nothing is wrong."""
    queue = await fed_job(redis, 10)
    claimed = (await claim(queue, "w", 1)).claimed
    await finish(queue, "zombie", claimed)
    reply = await queue.commit("w", [], [Returned(0, claimed[0].claim, 0, 0, missing=True)])
    assert (reply.state, reply.stale) == ("running", 0)
    seen = await queue.snapshot()
    assert (seen.missing, seen.waiting, seen.in_flight) == (0, 0, 0)


async def crash_alone(queue: LeaseQueue, token: str) -> None:
    (held,) = (await claim(queue, token, 1, suspects=True)).claimed
    assert held.suspect
    await queue.reap(token, force=True, crashed=True)


async def test_many_crashes_alone_make_poison_that_is_never_run(redis: Redis):
    """Seven may be anybody's doing. After the eighth it is handed out once more, marked, so that a worker fails it
    without running it."""
    queue = await fed_job(redis, 4)
    await claim(queue, "w0", 1)
    await queue.reap("w0", force=True, crashed=True)
    for death in range(DEATHS_ALONE - 1):
        await crash_alone(queue, f"w1.{death}")
    (held,) = (await claim(queue, "w2", 4, suspects=True)).claimed
    assert (held.index, held.crashes, held.suspect, held.poison) == (0, DEATHS_ALONE, True, False)
    assert (await queue.reap("w2", force=True, crashed=True)).poisoned == 1
    claimed = (await claim(queue, "w3", 4)).claimed
    assert [(c.index, c.poison, c.suspect) for c in claimed] == [
        (0, True, False),
        (1, False, False),
        (2, False, False),
        (3, False, False),
    ]
    await queue.reap("w3", force=True, crashed=True)
    (poison,) = [c for c in (await claim(queue, "w4", 4)).claimed if c.poison]
    assert await queue.fetch([poison]) == [frame(0)]
    assert (await finish(queue, "w4", [poison], FailureClass.POISON)).new == 1


@pytest.mark.parametrize("crashed", [False, True])
async def test_only_a_crash_makes_suspects(redis: Redis, crashed: bool):
    """A stopped supervisor, a lost host or a late renewal blames nobody."""
    queue = await fed_job(redis, 10)
    await claim(queue, "w", 10)
    assert (await queue.reap("w", force=True, crashed=crashed)).moved == 10
    seen = await queue.snapshot()
    assert (seen.waiting, seen.suspects, seen.redelivered) == (10, 10 if crashed else 0, 10)


async def test_a_dead_workers_requests_that_others_answered_stay_done(redis: Redis):
    """A late answer of somebody else leaves them in its hands; its end puts back the others alone."""
    queue = await fed_job(redis, 3)
    await claim(queue, "w1", 3)
    await queue.commit("w0", [Finished(1, 0, record_of(1))], [])
    assert (await queue.reap("w1", force=True, crashed=True)).moved == 2
    assert indices((await claim(queue, "w2", suspects=True)).claimed) in ([0], [2])
    await check_invariants(redis, queue)


async def test_a_token_gets_nothing_else_while_it_holds_suspects(redis: Redis):
    """Else an innocent would share its crash; once they are settled it works on."""
    queue = await fed_job(redis, 10)
    await claim(queue, "w1", 2)
    await queue.reap("w1", force=True, crashed=True)
    held = (await claim(queue, "w2", 10, suspects=True)).claimed
    assert len(held) == 1
    assert (await claim(queue, "w2", 10, suspects=True)).status == "EMPTY"
    assert indices((await claim(queue, "w3", 3, suspects=False)).claimed) == [2, 3, 4]
    await finish(queue, "w2", held)
    assert (await claim(queue, "w3", 10, suspects=True)).claimed[0].index == 5
    assert [c.suspect for c in (await claim(queue, "w2", 10, suspects=True)).claimed] == [True]


async def test_a_suspect_stays_one_until_it_is_done(redis: Redis):
    """Given back, or held by a worker that was stopped: it is still unproven."""
    queue = await fed_job(redis, 1)
    await claim(queue, "w1")
    await queue.reap("w1", force=True, crashed=True)
    for _ in range(2):
        held = (await claim(queue, "w2", suspects=True)).claimed
        await give_back(queue, "w2", held)
    await claim(queue, "w2", suspects=True)
    await queue.reap("w2", force=True, crashed=False)
    (held,) = (await claim(queue, "w3", suspects=True)).claimed
    assert (held.suspect, held.crashes) == (True, 1)
    assert (await finish(queue, "w3", [held])).complete


async def test_a_lease_runs_out_by_the_stores_clock_and_is_reaped_without_blame(redis: Redis):
    """Its worker hears LOST at its next call and goes on with a new token."""
    queue = await fed_job(redis, 10)
    await claim(queue, "w1", 2, ttl_ms=0)
    await claim(queue, "w2", 2)
    assert set(await queue.tokens()) == {"w1", "w2"}
    assert (await queue.reap("w2", force=False, crashed=False)).status == "ALIVE"
    assert await queue.reap_expired() == 1
    assert await queue.reap_expired() == 0
    assert (await queue.renew("w1", TTL_MS)).status == "LOST"
    assert (await claim(queue, "w1", 2, believed=True)).status == "LOST"
    assert indices((await claim(queue, "w1-2", 2)).claimed) == [0, 1]
    assert (await queue.reap("w1", force=True, crashed=True)).status == "NONE"


async def test_a_renewal_says_how_many_are_held_so_that_lost_claims_are_found(redis: Redis):
    """A claim whose reply was lost shows in the count, and `held` says what to give back."""
    queue = await fed_job(redis, 10)
    await claim(queue, "w", 3)
    assert (await queue.renew("w", TTL_MS)).held == 3
    held = await queue.held("w")
    reply = await queue.commit("w", [], [Returned(i, number, 0, 0) for i, number in held.items()])
    assert reply.stale == 0
    assert (await queue.renew("w", TTL_MS)).held == 0
    assert (await queue.snapshot()).waiting == 3


async def test_a_pause_holds_back_claims_and_nothing_else(redis: Redis):
    """Renewals and records go on, and say that the job is paused."""
    queue = await fed_job(redis, 10)
    claimed = (await claim(queue, "w", 2)).claimed
    await queue.pause(PauseReason.USER, "lunch")
    assert ((reply := await claim(queue, "w")).status, reply.state) == ("IDLE", "paused")
    assert (await queue.renew("w", TTL_MS)).state == "paused"
    assert (await finish(queue, "w", claimed)).new == 2
    assert (await queue.resume()).state == "running"
    assert len((await claim(queue, "w")).claimed) == 8


async def test_large_commits_go_in_several_calls(redis: Redis):
    """A drain of thousands is summed up in one reply."""
    queue = await fed_job(redis, 4000, per_run=500)
    claimed = [c for _ in range(4) for c in (await claim(queue, "w", 1000)).claimed]
    finished = [Finished(c.index, c.run, record_of(c.index)) for c in claimed[:2000]]
    returned = [Returned(c.index, c.claim, 0, 1) for c in claimed[2000:]]
    reply = await queue.commit("w", finished, returned)
    assert (reply.new, reply.stale) == (2000, 0)
    reply = await queue.commit("w", finished, returned)
    assert (reply.new, reply.dup, reply.stale) == (0, 2000, 2000)
    assert (await queue.snapshot()).waiting == 2000
    await check_invariants(redis, queue)


async def test_an_empty_commit_is_a_look_at_the_job(redis: Redis):
    """It costs nothing and says the state."""
    queue = await fed_job(redis, 10)
    reply = await queue.commit("w", [], [])
    assert (reply.status, reply.state, reply.new) == ("OK", "running", 0)
