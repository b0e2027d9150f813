"""The feeder against a real store: whatever happens on the way, exactly the input's lines are in it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as StoreGoneError
from tests.support.feeding import (
    Hooked,
    Past,
    claimed,
    drain,
    in_order,
    new_job,
    prompts,
    run,
    write,
)
from tests.support.store import StoreProcess
from tests.support.wait import wait_until

from gristmill.intake import feeder_store
from gristmill.intake.errors import FeedError
from gristmill.intake.lines_seen import Notice
from gristmill.intake.runs import Cursor
from gristmill.queue.replies import Role, Run, SealReply, SealStatus
from gristmill.queue.store import connect


async def test_full_hopper_waits_and_repeats_only_the_seal(
    redis: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above the mark the stage stays, the lease is renewed beyond its time, the wait is told, and the rest follows."""
    monkeypatch.setattr(feeder_store, "LEASE_TTL_MS", 600)
    monkeypatch.setattr(feeder_store, "_TELL_AFTER_S", 0.1)
    monkeypatch.setattr(feeder_store, "_LONGEST_WAIT_S", 0.1)
    path = write(tmp_path / "in", prompts(600, size=2000))
    queue = Hooked(await new_job(redis, payload_mark_bytes=300_000))
    notices: list[Notice] = []
    feeding = asyncio.create_task(run(queue, path, notices=notices))
    await wait_until(lambda: queue.sealed.count(SealStatus.FULL) > 10, description="the hopper is full for a while")
    assert queue.staged == queue.sealed.count(SealStatus.OK) + 1
    lease = (await queue.snapshot()).feeder
    assert lease is not None
    assert lease.token == "f1"
    assert any("as much as it may" in notice.text for notice in notices)
    found = await drain(queue.queue, 600)
    assert (await feeding).sealed == 600
    assert queue.staged == queue.sealed.count(SealStatus.OK)
    assert [f.ordinal for f in in_order(found)] == list(range(600))
    assert any(notice.kind == "going_on" for notice in notices)


async def test_stopped_feeder_is_resumed_by_the_next(redis: Redis, tmp_path: Path) -> None:
    """A cancelled feeder gives its lease back at once; the next goes on at the cursor, with nothing twice or lost."""
    path = write(tmp_path / "in", prompts(900, size=1000))
    queue = Hooked(await new_job(redis, payload_mark_bytes=250_000))
    feeding = asyncio.create_task(run(queue, path))
    await wait_until(lambda: SealStatus.FULL in queue.sealed, description="the feeder waits")
    feeding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await feeding
    snapshot = await queue.snapshot()
    assert (snapshot.feeder, snapshot.feeder_lost, snapshot.closed) == (None, True, False)
    assert 0 < snapshot.prod < 900
    again = asyncio.create_task(run(queue.queue, path, token="f2"))
    found = await drain(queue.queue, 900)
    assert (await again).lines == 900
    assert [f.custom_id for f in in_order(found)] == [f"c{i}" for i in range(900)]
    assert (await run(queue.queue, path, token="f3")).closed


async def test_lost_reply_of_a_seal_is_no_second_run(redis: Redis, tmp_path: Path) -> None:
    """The same seal asked again is a DUP with our cursor: the feeder goes on without a rewind."""
    queue = Hooked(await new_job(redis))
    lost = 0

    async def lose(reply: SealReply) -> None:
        nonlocal lost
        if reply.status is SealStatus.OK and lost < 2:
            lost += 1
            raise StoreGoneError("reply lost")

    queue.after_seal = lose
    notices: list[Notice] = []
    result = await run(queue, write(tmp_path / "in", prompts(400)), notices=notices)
    assert result.sealed == 400
    assert queue.sealed.count(SealStatus.DUP) == 2
    assert [f.ordinal for f in in_order(await claimed(queue.queue))] == list(range(400))
    assert not [notice for notice in notices if notice.kind == "rewound"]


async def test_torn_stage_is_uploaded_again(redis: Redis, tmp_path: Path) -> None:
    """A stage that expired or was cut is staged anew."""
    queue = Hooked(await new_job(redis))
    torn = 0

    async def tear(sealed: Run) -> None:
        nonlocal torn
        if sealed.run == 1 and torn < 2:
            torn += 1
            await redis.delete(queue.queue.keys.stage("f1"))

    queue.before_seal = tear
    assert (await run(queue, write(tmp_path / "in", prompts(400)))).sealed == 400
    assert queue.sealed.count(SealStatus.TORN) == 2
    assert len(await claimed(queue.queue)) == 400


async def test_store_that_lost_a_suffix_is_fed_again_from_its_cursor(redis: Redis, tmp_path: Path) -> None:
    """After a rollback the feeder rewinds to what the store has: no index is skipped, no line is told of twice."""
    inner = await new_job(redis)
    queue, past = Hooked(inner), Past(redis, inner.keys.pattern)

    async def roll_back(_: SealReply) -> None:
        if len(queue.sealed) == 2:
            await past.keep()
        if len(queue.sealed) == 4:
            await past.restore()

    queue.after_seal = roll_back
    lines: list[dict[str, Any]] = list(prompts(1500))
    lines[400] = {"custom_id": "c400", "nothing": 1}
    notices: list[Notice] = []
    result = await run(queue, write(tmp_path / "in", lines), notices=notices)
    assert (result.lines, result.sealed, result.refused, result.duplicates) == (1500, 1500, 1, 0)
    assert SealStatus.GAP in queue.sealed
    assert [notice.kind for notice in notices] == ["bad_line", "rewound"]
    assert [f.custom_id for f in in_order(await claimed(inner))] == [f"c{i}" for i in range(1500)]


async def test_suffix_lost_before_the_close_does_not_complete_the_job_short(redis: Redis, tmp_path: Path) -> None:
    """`close` is refused when the store has less than was sealed, and what is missing is sealed again."""
    inner = await new_job(redis)
    queue, past = Hooked(inner), Past(redis, inner.keys.pattern)
    thrown_back = False

    async def keep(_: SealReply) -> None:
        if len(queue.sealed) == 2:
            await past.keep()

    async def throw_back() -> None:
        nonlocal thrown_back
        if not thrown_back:
            thrown_back = True
            await past.restore()

    queue.after_seal, queue.before_close = keep, throw_back
    assert (await run(queue, write(tmp_path / "in", prompts(900)))).sealed == 900
    assert (await inner.snapshot()).n == 900
    assert [f.ordinal for f in in_order(await claimed(inner))] == list(range(900))


async def test_run_that_another_sealed_is_not_taken_for_ours(redis: Redis, tmp_path: Path) -> None:
    """A DUP with a cursor that is not ours means that the store stands elsewhere: go on from there."""
    path = write(tmp_path / "in", prompts(700))
    inner = await new_job(redis)
    queue = Hooked(inner)

    async def overtake(sealed: Run) -> None:
        if sealed.run != 1 or SealStatus.DUP in queue.sealed:
            return
        frames = await redis.hgetall(inner.keys.stage("f1"))
        mine = {str(i): frames[str(i).encode()] for i in range(16, 21)}
        await inner.take_lease(Role.FEEDER, "other", "there", 60_000, force=True)
        offset = len(b"".join(path.read_bytes().splitlines(keepends=True)[:21]))
        cursor = Cursor(line=21, offset=offset, place=21, ordinal=21, index=21).encode()
        size = await inner.stage("other", mine)
        other = Run(run=1, first=16, count=5, bytes=size, fields=5, cursor=cursor)
        assert (await inner.seal("other", other)).status is SealStatus.OK
        await inner.take_lease(Role.FEEDER, "f1", "here", 60_000, force=True)

    queue.before_seal = overtake
    notices: list[Notice] = []
    assert (await run(queue, path, notices=notices)).sealed == 700
    assert [notice.text for notice in notices] == ["the store stands at line 21: going on from there"]
    assert [f.ordinal for f in in_order(await claimed(inner))] == list(range(700))


async def test_lease_that_ran_out_is_taken_again(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an outage longer than its life the lease is free: the feeder takes it back unless another has."""
    monkeypatch.setattr(feeder_store, "LEASE_TTL_MS", 300)
    queue = await new_job(redis)
    store = feeder_store.FeederStore(queue, "f1", "here", lambda _: None)
    await store.take()
    await queue.release_lease(Role.FEEDER, "f1")

    async def held() -> bool:
        return (await queue.snapshot()).feeder is not None

    await wait_until(held, description="the lease is taken again")
    await queue.take_lease(Role.FEEDER, "thief", "there", 60_000, force=True)

    def gives_up() -> bool:
        try:
            store.require_lease()
        except FeedError:
            return True
        return False

    await wait_until(gives_up, description="the feeder knows that its lease is lost")
    await store.release()
    assert (await queue.snapshot()).feeder is not None


async def test_store_outage_is_waited_out(
    own_store: StoreProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is killed and comes back: the feeder says that it waits, and every line is in the end there once."""
    monkeypatch.setattr(feeder_store, "_TELL_AFTER_S", 0.1)
    redis = connect(own_store.url)
    path = write(tmp_path / "in", prompts(3000, size=500))
    queue = Hooked(await new_job(redis))
    killed = False

    async def kill(sealed: Run) -> None:
        nonlocal killed
        if sealed.run == 4 and not killed:
            killed = True
            own_store.kill()

    queue.before_seal = kill
    notices: list[Notice] = []
    feeding = asyncio.create_task(run(queue, path, notices=notices))
    await wait_until(lambda: any(n.kind == "waiting" for n in notices), description="the feeder says that it waits")
    await asyncio.to_thread(own_store.start)
    assert (await feeding).sealed == 3000
    assert [f.custom_id for f in in_order(await claimed(queue.queue))] == [f"c{i}" for i in range(3000)]
    await redis.aclose()


async def test_second_feeder_is_refused_by_name(redis: Redis, tmp_path: Path) -> None:
    """One feeder a job; the other is told who it is."""
    queue = await new_job(redis)
    await queue.take_lease(Role.FEEDER, "other", "host pid 7", 60_000)
    with pytest.raises(FeedError, match="host pid 7"):
        await run(queue, write(tmp_path / "in", prompts(1)))
    assert (await queue.snapshot()).feeder is not None


async def test_lease_taken_over_stops_the_feeder(redis: Redis, tmp_path: Path) -> None:
    """A feeder whose lease another took seals nothing more."""
    queue = Hooked(await new_job(redis))

    async def take(sealed: Run) -> None:
        if sealed.run == 2:
            await queue.take_lease(Role.FEEDER, "thief", "there", 60_000, force=True)

    queue.before_seal = take
    with pytest.raises(FeedError, match="there"):
        await run(queue, write(tmp_path / "in", prompts(1000)))
    snapshot = await queue.snapshot()
    assert snapshot.sealed_runs == 2
    assert snapshot.feeder is not None
    assert snapshot.feeder.token == "thief"


async def test_cancelled_job_ends_the_feeding(redis: Redis, tmp_path: Path) -> None:
    """It is no error: the result says so."""
    queue = Hooked(await new_job(redis))

    async def cancel(sealed: Run) -> None:
        if sealed.run == 1:
            await queue.cancel()

    queue.before_seal = cancel
    result = await run(queue, write(tmp_path / "in", prompts(1000)))
    assert (result.closed, result.ended, result.sealed) == (False, "cancelled", 16)
