"""One test for each fault that an earlier design of this queue had on a real server."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis
from tests.support.invariants import check_invariants
from tests.support.queues import (
    COLLECTOR,
    FEEDER,
    claim,
    collect_all,
    fed_job,
    feed,
    finish,
    frame,
    give_back,
    indices,
    make_job,
    record_of,
)

from gristmill.contract import frame as frames
from gristmill.contract.failure import FailureClass
from gristmill.contract.lifecycle import PauseReason
from gristmill.queue import LeaseQueue
from gristmill.queue.replies import Finished, Returned, Run


async def snapshot_keys(redis: Redis, queue: LeaseQueue) -> dict[bytes, bytes]:
    return {key: await redis.dump(key) async for key in redis.scan_iter(match=queue.keys.pattern)}


async def restore_keys(redis: Redis, queue: LeaseQueue, saved: dict[bytes, bytes]) -> None:
    async for key in redis.scan_iter(match=queue.keys.pattern):
        await redis.delete(key)
    for key, value in saved.items():
        await redis.restore(key, 0, value)


async def test_cancel_keeps_the_records_of_what_was_in_flight(redis: Redis):
    """A cancelled job takes the answers that were being made, and the partial block they leave can be acked."""
    queue = await fed_job(redis, 20)
    claimed = (await claim(queue, "w", 5)).claimed
    assert (await queue.cancel()).state == "cancelling"
    assert (await claim(queue, "w", 5)).status == "IDLE"
    reply = await finish(queue, "w", claimed[:3])
    assert (reply.new, reply.state) == (3, "cancelling")
    reply = await give_back(queue, "w", claimed[3:])
    assert reply.state == "cancelled"
    assert (await queue.settle()).status == "UNCHANGED"
    assert sorted(await collect_all(queue)) == indices(claimed[:3])
    snapshot = await queue.snapshot()
    assert (snapshot.payload_bytes, snapshot.results_bytes, snapshot.waiting) == (0, 0, 0)
    await check_invariants(redis, queue)


async def test_close_after_a_lost_suffix_is_a_gap(redis: Redis):
    """A store that lost a sealed run does not let the job close, so it never completes short; the feeder rewinds."""
    queue = await make_job(redis)
    await feed(queue, 0, 0, 10)
    saved = await snapshot_keys(redis, queue)
    await feed(queue, 1, 10, 10)
    await restore_keys(redis, queue, saved)
    reply = await queue.close(2, 20)
    assert (reply.status, reply.sealed_runs, reply.n) == ("GAP", 1, 10)
    assert queue.rolled_back
    assert (await queue.snapshot()).cursor == b"10"
    assert (await feed(queue, 1, 10, 10)).status == "OK"
    assert (await queue.close(2, 20)).status == "OK"
    await finish(queue, "w", (await claim(queue, "w")).claimed)
    assert (await queue.snapshot()).done == 20


async def test_a_straggler_keeps_no_block_from_being_freed(redis: Redis):
    """With one slow request in each block, all others are collected and freed, and fresh work goes on."""
    queue = await fed_job(redis, 80, results_mark_bytes=6000)
    claimed = (await claim(queue, "w", 80)).claimed
    slow = [c for c in claimed if c.index % 8 == 3]
    await finish(queue, "w", [c for c in claimed if c not in slow])
    assert (await queue.snapshot()).results_bytes > 6000
    assert sorted(await collect_all(queue)) == [c.index for c in claimed if c not in slow]
    assert (await queue.snapshot()).results_bytes == 0
    assert (await finish(queue, "w", slow)).complete
    assert sorted(await collect_all(queue)) == indices(slow)
    await check_invariants(redis, queue)


async def test_a_bad_line_is_sealed_and_claimed_like_any_other(redis: Redis):
    """A refusal lies in the store as a frame: whoever claims it can fail it by what it says."""
    queue = await make_job(redis)
    refusal = frames.Refusal(0, "a", b"f" * 16, FailureClass.BAD_INPUT, "line 1 is not JSON", 1)
    fields: dict[bytes | str, bytes] = {"0": frames.encode(refusal), "1": frame(1)}
    staged = await queue.stage(FEEDER, fields)
    assert (await queue.seal(FEEDER, Run(run=0, first=0, count=2, bytes=staged, fields=2, cursor=b""))).status == "OK"
    claimed = (await claim(queue, "w")).claimed
    data = await queue.fetch(claimed)
    assert frames.decode(data[0]) == refusal
    assert (await finish(queue, "w", claimed[:1], FailureClass.BAD_INPUT)).new == 1
    assert (await queue.snapshot()).by_class == {FailureClass.BAD_INPUT: 1}


async def test_a_run_without_the_frame_of_an_index_is_torn(redis: Redis):
    """Enough fields alone do not make a run: a claimed index always has its payload."""
    queue = await make_job(redis)
    staged = await queue.stage(FEEDER, {"0": b"x", "7": b"y"})
    reply = await queue.seal(FEEDER, Run(run=0, first=0, count=2, bytes=staged, fields=2, cursor=b""))
    assert reply.status == "TORN"


async def test_one_crash_serves_its_suspects_in_halves(redis: Redis):
    """128 held at a crash come back in company of 64 at most, then 32, not in a fixed trickle."""
    queue = await fed_job(redis, 128, per_run=64)
    await claim(queue, "w1", 128)
    assert (await queue.reap("w1", force=True, crashed=True)).suspects == 128
    first = await claim(queue, "w2", 128, suspects=True)
    assert len(first.claimed) == 64
    assert all(c.suspect and c.crashes == 1 for c in first.claimed)
    await queue.reap("w2", force=True, crashed=True)
    sizes = sorted([len((await claim(queue, f"w{k}", 128, suspects=True)).claimed) for k in (3, 4, 5)])
    assert sizes == [32, 32, 64]


async def test_ten_thousand_due_retries_can_be_claimed(redis: Redis):
    """However many retries are due at once, a claim takes its share and the rest stays."""
    queue = await fed_job(redis, 10_000, per_run=500)
    claimed = [c for _ in range(10) for c in (await claim(queue, "w", 1000)).claimed]
    reply = await give_back(queue, "w", claimed, charged=1)
    assert reply.stale == 0
    assert (await queue.snapshot()).waiting == 10_000
    again = await claim(queue, "w", 8192)
    assert len(again.claimed) == 1000
    assert all(c.attempts == 1 for c in again.claimed)
    seen = set(indices(again.claimed))
    while reply := (await claim(queue, "w", 1000)).claimed:
        assert not seen & set(indices(reply))
        seen |= set(indices(reply))
    assert seen == set(range(10_000))
    assert (await queue.reap("w", force=True, crashed=True)).moved == 10_000


async def test_suspects_do_not_hide_other_retries(redis: Redis):
    """Suspects wait in a place of their own: a token that does not serve them gets the retries that came later."""
    queue = await fed_job(redis, 40)
    await claim(queue, "w1", 30)
    await queue.reap("w1", force=True, crashed=True)
    later = (await claim(queue, "w2", 10)).claimed
    assert indices(later) == list(range(30, 40))
    await give_back(queue, "w2", later)
    again = await claim(queue, "w2", 10)
    assert indices(again.claimed) == indices(later)
    assert not any(c.suspect for c in again.claimed)


async def test_a_replayed_retry_does_not_take_the_index_from_its_new_claim(redis: Redis):
    """The claim number is the fence: a return sent again after a re-claim, also by the same token, is stale."""
    queue = await fed_job(redis, 10)
    (old,) = (await claim(queue, "w", 1)).claimed
    back = [Returned(old.index, old.claim, 0, charged=1)]
    assert (await queue.commit("w", [], back)).stale == 0
    (new,) = (await claim(queue, "w", 1)).claimed
    assert (new.index, new.attempts) == (old.index, 1)
    assert new.claim > old.claim
    assert (await queue.commit("w", [], back)).stale == 1
    assert await queue.held("w") == {new.index: new.claim}
    snapshot = await queue.snapshot()
    assert (snapshot.waiting, snapshot.in_flight, snapshot.stale) == (0, 1, 1)


@pytest.mark.parametrize("close_first", [True, False])
async def test_all_done_while_paused_is_complete_after_close_or_resume(redis: Redis, close_first: bool):
    """A job whose last record came while it was paused ends when it is closed, and never hangs in running."""
    queue = await fed_job(redis, 10, close=close_first)
    claimed = (await claim(queue, "w")).claimed
    await queue.pause(PauseReason.USER, "")
    reply = await finish(queue, "w", claimed)
    if close_first:
        assert (reply.complete, reply.state) == (True, "complete")
    else:
        assert reply.state == "paused"
        assert (await queue.close(1, 10)).state == "complete"
    assert (await queue.resume()).state == "complete"


async def test_a_resume_finds_a_job_of_which_all_is_done_complete(redis: Redis):
    """Wherever a store was cut, resume decides completion anew from the done bits."""
    queue = await fed_job(redis, 10)
    await finish(queue, "w", (await claim(queue, "w")).claimed)
    await redis.hset(queue.keys.meta, mapping={"state": "paused", "reason": "user"})
    assert (await queue.resume()).state == "complete"


async def test_a_run_without_requests_is_refused_by_name(redis: Redis):
    """An empty run is the caller's mistake, said in a sentence; an empty input simply closes."""
    queue = await make_job(redis)
    with pytest.raises(ValueError, match="a run holds at least one request"):
        await queue.seal(FEEDER, Run(run=0, first=0, count=0, bytes=0, fields=0, cursor=b""))
    assert (await queue.close(0, 0)).state == "complete"
    assert (await queue.snapshot()).n == 0


async def test_a_collector_that_was_away_misses_nothing(redis: Redis):
    """What is to be collected is a set in the store, not a stream of events that may be trimmed."""
    queue = await fed_job(redis, 2000, per_run=200)
    while claimed := (await claim(queue, "w", 1000)).claimed:
        for item in reversed(claimed[::50]):
            await finish(queue, "w", [item])
        await finish(queue, "w", [c for k, c in enumerate(claimed) if k % 50])
    assert sorted(await collect_all(queue)) == list(range(2000))


async def test_full_keeps_the_stage_so_that_only_the_seal_is_repeated(redis: Redis):
    """Above the mark nothing is uploaded twice: once there is room, the same seal succeeds."""
    queue = await make_job(redis, payload_mark_bytes=3000)
    await feed(queue, 0, 0, 15)
    fields: dict[bytes | str, bytes] = {str(i): frame(i) for i in range(15, 30)}
    run = Run(run=1, first=15, count=15, bytes=await queue.stage(FEEDER, fields), fields=15, cursor=b"30")
    await redis.expire(queue.keys.stage(FEEDER), 5)
    for _ in range(2):
        reply = await queue.seal(FEEDER, run)
        assert reply.status == "FULL"
        assert reply.payload_mark == 3000
    assert await redis.ttl(queue.keys.stage(FEEDER)) > 500
    await finish(queue, "w", (await claim(queue, "w", 15)).claimed)
    assert (await queue.seal(FEEDER, run)).status == "OK"
    assert await queue.fetch((await claim(queue, "w", 15)).claimed) == list(fields.values())


async def test_blocks_know_nothing_of_payload_runs(redis: Redis):
    """Runs are cut by the size of their frames, blocks by index: a block may span runs, and a run blocks."""
    queue = await make_job(redis)
    first = 0
    for run, count in enumerate((1, 20, 3, 7, 1)):
        assert (await feed(queue, run, first, count)).status == "OK"
        first += count
    claimed = (await claim(queue, "w")).claimed
    assert [c.run for c in claimed] == [0] + [1] * 20 + [2] * 3 + [3] * 7 + [4]
    assert await queue.fetch(claimed) == [frame(i) for i in range(32)]
    await finish(queue, "w", claimed)
    assert {b: sorted(r) for b, r in (await queue.read_blocks(1 << 20)).items()} == {
        block: list(range(8 * block, 8 * block + 8)) for block in range(4)
    }


async def test_acks_come_in_any_order_and_only_once(redis: Redis):
    """Single records are acked as they are durable; an ack sent again frees nothing more."""
    queue = await fed_job(redis, 16)
    await finish(queue, "w", (await claim(queue, "w")).claimed)
    assert (await queue.ack(COLLECTOR, {1: [15, 9], 0: [4]})).acked == 3
    assert (await queue.ack(COLLECTOR, {1: [15, 9], 0: [4]})).acked == 0
    assert sorted(await collect_all(queue)) == [i for i in range(16) if i not in (4, 9, 15)]
    late = await queue.commit("w", [Finished(4, 0, record_of(4, body=b"[9]"))], [])
    assert (late.new, late.dup) == (0, 1)
    assert await queue.read_blocks(1 << 20) == {}
