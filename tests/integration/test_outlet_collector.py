"""The collector against the real queue in a real store: durable first, then acked; leases, outages, rollbacks."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from redis.asyncio import Redis
from tests.support.jobs import chat, sealed_job
from tests.support.outlet import begun, entry, ordinals, record
from tests.support.store import StoreProcess
from tests.support.wait import wait_until

from gristmill.contract import record as records
from gristmill.contract.failure import FailureClass
from gristmill.contract.frame import FormatError
from gristmill.contract.lifecycle import JobState
from gristmill.outlet import collector, segments
from gristmill.outlet.assemble import Grower, finish
from gristmill.outlet.collector import Collected, Until, collect
from gristmill.outlet.errors import CollectorBusyError, DamagedError, DiskError, LeaseLostError
from gristmill.outlet.events import Event, Progress, RolledBack, StoreBack, StoreWait
from gristmill.outlet.peek import peek
from gristmill.outlet.proof import prove
from gristmill.queue import LeaseQueue
from gristmill.queue.errors import JobNotFoundError
from gristmill.queue.replies import ClaimStatus, Finished, JobSnapshot, Role
from gristmill.queue.store import connect


async def job_of(redis: Redis, n: int, **changes: Any) -> LeaseQueue:
    """A closed job of `n` small requests that nobody holds back."""
    return await sealed_job(redis, [chat(i) for i in range(n)], **({"first_alone": 0, "block_size": 16} | changes))


async def answer(queue: LeaseQueue, indices: range | list[int], **detail: Any) -> None:
    """Commit an ok record for each index, as a worker would; all of them are claimed first."""
    wanted = set(indices)
    claimed = []
    while True:
        reply = await queue.claim("w", 1000, 1 << 30, 30_000, believed=True, suspects=False)
        claimed += reply.claimed
        if reply.status is not ClaimStatus.OK or not reply.claimed:
            break
    done = [Finished(i, 0, records.encode(record(i, **detail))) for i in sorted(wanted)]
    reply_ = await queue.commit("w", done, [])
    assert reply_.new == len(wanted)


async def test_results_in_any_order_become_a_file_in_order(redis: Redis, tmp_path: Path):
    """From the store to OUT: everything durable, acked, freed, proved."""
    queue = await job_of(redis, 50)
    with begun(tmp_path / "out", queue.job) as work:
        grower = Grower(work)
        collecting = asyncio.create_task(collect(queue, work, token="c", grow=grower.step))
        for part in (range(40, 50), range(1, 20), range(20, 40), range(1)):
            await answer(queue, part)
        done = await collecting
        assert done == Collected(JobState.COMPLETE, 50, 0, 50, False, True)
        finish(work, fed=True, grower=grower)
        snapshot = await queue.snapshot()
        assert (snapshot.acked, snapshot.collector) == (50, None)
        assert prove(work, snapshot).ok == 50
        grower.close()
    assert ordinals(tmp_path / "out") == list(range(50))
    assert await queue.read_blocks(1 << 20) == {}


async def test_a_straggler_holds_back_only_the_file(redis: Redis, tmp_path: Path):
    """All others are durable and acked, so the store is free of them."""
    queue = await job_of(redis, 40)
    stop = asyncio.Event()
    with begun(tmp_path / "out", queue.job) as work:
        grower = Grower(work)
        await answer(queue, [i for i in range(40) if i != 2])
        collecting = asyncio.create_task(collect(queue, work, token="c", stop=stop, grow=grower.step))

        async def acked() -> bool:
            return (await queue.snapshot()).acked == 39

        await wait_until(acked, description="39 results acked")
        assert ordinals(tmp_path / "out") == [0, 1]
        stop.set()
        assert not (await collecting).finished
        assert (await queue.snapshot()).results_bytes == 0
        grower.close()


async def test_nothing_is_acked_before_it_is_durable(redis: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The disk fills up: an error with a path, and every result is still in the store."""
    queue = await job_of(redis, 10)
    await answer(queue, range(10))

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with begun(tmp_path / "out", queue.job) as work:
        with monkeypatch.context() as patched:
            patched.setattr(segments, "sync_data", full)
            with pytest.raises(DiskError, match=r"seg-000001.jsonl: No space left on device"):
                await collect(queue, work, token="c")
        snapshot = await queue.snapshot()
        assert (snapshot.acked, snapshot.collector) == (0, None)
        work.resume()
        assert (await collect(queue, work, token="c")).new == 10


async def test_what_was_durable_before_is_only_acked(redis: Redis, tmp_path: Path):
    """Killed between fsync and ack: the results are read again, and stand in the file once."""
    queue = await job_of(redis, 10)
    await answer(queue, range(10))
    with begun(tmp_path / "out", queue.job) as work:
        work.ledger.append([entry(queue.job, record(i)) for i in range(6)])
        done = await collect(queue, work, token="c")
        assert (done.new, done.repeated, done.acked) == (4, 6, 10)
        finish(work, fed=True)
        prove(work, await queue.snapshot())
    assert ordinals(tmp_path / "out") == list(range(10))


async def test_a_second_collector_is_refused_and_may_take_over(redis: Redis, tmp_path: Path):
    """Only one acks; who loses the lease stops with a sentence and keeps what is durable."""
    queue = await job_of(redis, 4)
    with begun(tmp_path / "a", queue.job) as one, begun(tmp_path / "b", queue.job) as two:
        seen: list[Event] = []
        first = asyncio.create_task(
            collect(queue, one, token="c1", holder="host a", lease_ttl_ms=300, report=seen.append)
        )

        async def held() -> bool:
            return (await queue.snapshot()).collector is not None

        await wait_until(held, description="the first collector holds the lease")
        with pytest.raises(CollectorBusyError, match=r"host a is collecting its results.*--take"):
            await collect(queue, two, token="c2")
        second = asyncio.create_task(collect(queue, two, token="c2", take=True))
        with pytest.raises(LeaseLostError, match="another collector has taken over"):
            await first
        await answer(queue, range(4))
        assert (await second).new == 4
        assert one.ledger.new == 0


async def test_a_lapsed_lease_that_nobody_took_is_taken_back(redis: Redis, tmp_path: Path):
    """A laptop that slept through its lease goes on."""
    queue = await job_of(redis, 4)
    with begun(tmp_path / "out", queue.job) as work:
        collecting = asyncio.create_task(collect(queue, work, token="c"))

        async def held() -> bool:
            return (await queue.snapshot()).collector is not None

        await wait_until(held, description="the collector holds the lease")
        await queue.release_lease(Role.COLLECTOR, "c")
        await answer(queue, range(4))
        assert (await collecting).acked == 4


async def test_stopping_makes_what_was_read_durable_and_gives_the_lease_back(redis: Redis, tmp_path: Path):
    """Ctrl-C keeps everything; draining later takes the rest."""
    queue = await job_of(redis, 8)
    await answer(queue, range(5))
    stop = asyncio.Event()
    stop.set()
    with begun(tmp_path / "out", queue.job) as work:
        done = await collect(queue, work, token="c", stop=stop)
        assert (done.new, done.acked, done.finished) == (5, 5, False)
        assert (await queue.snapshot()).collector is None
        await queue.commit("w", [Finished(5, 0, records.encode(record(5)))], [])
        done = await collect(queue, work, token="c", until=Until.DRAINED)
        assert (done.new, done.finished) == (1, True)


async def test_a_cancelled_job_ends_with_what_it_has(redis: Redis, tmp_path: Path):
    """Finished work is kept, the rest has no line."""
    queue = await job_of(redis, 8)
    await answer(queue, [1, 6])
    await queue.cancel()
    await queue.settle(force=True)
    with begun(tmp_path / "out", queue.job) as work:
        done = await collect(queue, work, token="c")
        assert (done.state, done.new) == (JobState.CANCELLED, 2)
        finish(work, fed=True)
        assert prove(work, await queue.snapshot()).not_run == 6
    assert ordinals(tmp_path / "out") == [1, 6]


class LastMoment:
    """A queue whose last answer comes between an empty read and the look at the state."""

    def __init__(self, queue: LeaseQueue, indices: range) -> None:
        self._queue, self._indices = queue, indices

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    async def snapshot(self) -> JobSnapshot:
        if self._indices:
            await answer(self._queue, self._indices)
            self._indices = range(0)
        return await self._queue.snapshot()


async def test_an_answer_that_comes_with_the_end_of_the_job_is_not_missed(redis: Redis, tmp_path: Path):
    """A terminal state counts only when nothing was left to read after it was seen."""
    queue = await job_of(redis, 3)
    with begun(tmp_path / "out", queue.job) as work:
        late = cast("LeaseQueue", LastMoment(queue, range(3)))
        done = await collect(late, work, token="c")
        assert (done.new, done.acked, done.finished) == (3, 3, True)


async def test_an_empty_job_is_finished_at_once(redis: Redis, tmp_path: Path):
    """Everything was carried, or INPUT is empty."""
    queue = await job_of(redis, 0)
    with begun(tmp_path / "out", queue.job) as work:
        assert (await collect(queue, work, token="c")).finished


async def test_results_are_read_in_bounded_rounds(redis: Redis, tmp_path: Path):
    """More than one round holds is taken in several, each acked on its own."""
    queue = await job_of(redis, 64)
    await answer(queue, range(64), body=b'{"choices":["%b"]}' % (b"x" * 2000))
    seen: list[Event] = []
    with begun(tmp_path / "out", queue.job) as work:
        done = await collect(queue, work, token="c", round_bytes=40_000, report=seen.append)
        assert (done.new, done.acked) == (64, 64)
    steps = [e.new for e in seen if isinstance(e, Progress)]
    assert len(set(steps)) >= 3
    assert steps == sorted(steps)


async def test_a_removed_job_is_an_error(redis: Redis, tmp_path: Path):
    """`producer rm` meanwhile."""
    queue = await job_of(redis, 4)
    with begun(tmp_path / "out", queue.job) as work:
        collecting = asyncio.create_task(collect(queue, work, token="c"))

        async def held() -> bool:
            return (await queue.snapshot()).collector is not None

        await wait_until(held, description="the collector holds the lease")
        await queue.remove()
        with pytest.raises(JobNotFoundError):
            await collecting


async def spoilt(queue: LeaseQueue, index: int, data: bytes) -> None:
    """Have another result in the store than was committed."""
    await queue._handle.redis.hset(queue.keys.block(index // queue.block_size), str(index), data)


@pytest.mark.parametrize("data", [b"", b"\x01K", records.encode(record(0))[: records.HEADER_BYTES] + b"\xc1"])
async def test_a_damaged_record_holds_back_no_other(redis: Redis, tmp_path: Path, data: bytes):
    """The others are durable and acked; at the end of the job an error names it, and it is where it was. Who only takes
    what is there is told how many there are."""
    queue = await job_of(redis, 40)
    await answer(queue, range(40))
    await spoilt(queue, 17, data)
    with begun(tmp_path / "out", queue.job) as work:
        with pytest.raises(DamagedError, match=r"request 17 is damaged .* all others are kept"):
            await collect(queue, work, token="c")
        assert (await queue.snapshot()).acked == 39
        assert sorted(work.ledger.absent(range(40))) == [17]
        done = await collect(queue, work, token="c", until=Until.DRAINED)
        assert (done.new, done.damaged, done.finished) == (0, 1, True)


async def test_many_damaged_records_stop_the_collector_at_once(
    redis: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """They would be read again and again, and something is wrong with the store."""
    monkeypatch.setattr(collector, "MAX_DAMAGED", 2)
    queue = await job_of(redis, 10)
    await answer(queue, range(9))
    for index in range(3):
        await spoilt(queue, index, b"\x01")
    many = pytest.raises(DamagedError, match=r"3 results \(0, 1, 2\) are damaged")
    with begun(tmp_path / "out", queue.job) as work, many:
        await collect(queue, work, token="c")


async def test_a_record_of_another_version_stops_the_collector(redis: Redis, tmp_path: Path):
    """It is not damaged: a newer program can read it. Nothing is acked."""
    queue = await job_of(redis, 2)
    await answer(queue, range(2))
    await spoilt(queue, 1, b"\x63" + records.encode(record(1))[1:])
    with begun(tmp_path / "out", queue.job) as work:
        with pytest.raises(FormatError, match="record of version 63"):
            await collect(queue, work, token="c")
        assert (await queue.snapshot()).acked == 0


async def test_an_outage_is_waited_out_visibly(own_store: StoreProcess, tmp_path: Path):
    """The store is killed and started again: the collector says so and goes on."""
    redis = connect(own_store.url)
    queue = await job_of(redis, 6)
    await answer(queue, range(3))
    seen: list[Event] = []

    def has(kind: type) -> Callable[[], bool]:
        return lambda: any(isinstance(e, kind) for e in seen)

    with begun(tmp_path / "out", queue.job) as work:
        collecting = asyncio.create_task(collect(queue, work, token="c", report=seen.append))
        await wait_until(lambda: work.ledger.new == 3, description="three results durable")

        async def written() -> bool:
            return (await redis.info("persistence"))["aof_buffer_length"] == 0

        await wait_until(written, description="the store has given its log to the system")
        own_store.kill()
        await wait_until(has(StoreWait), description="the outage is told", timeout_s=60)
        await asyncio.to_thread(own_store.start)
        await wait_until(has(StoreBack), description="the store is back", timeout_s=60)
        await answer(queue, range(3, 6))
        done = await collecting
        assert (done.new, done.finished) == (6, True)
    await redis.aclose()


async def test_stopping_during_an_outage_does_not_wait_for_the_store(own_store: StoreProcess, tmp_path: Path):
    """Ctrl-C works while the store is away."""
    redis = Redis.from_url(own_store.url)
    queue = await job_of(redis, 6)
    stop = asyncio.Event()
    with begun(tmp_path / "out", queue.job) as work:
        own_store.kill()
        collecting = asyncio.create_task(collect(queue, work, token="c", stop=stop))
        await asyncio.sleep(0)
        stop.set()
        assert not (await asyncio.wait_for(collecting, 10)).finished
    await redis.aclose()


async def test_a_store_that_lost_its_latest_changes_changes_no_line(redis: Redis, tmp_path: Path):
    """Answers and acks are lost and made again, with another outcome: the durable lines stay, and the proof holds."""
    queue = await job_of(redis, 6)
    await answer(queue, range(3))
    keys = [key async for key in redis.scan_iter(match=queue.keys.pattern.replace("{", "[{]"))]
    before = {key: await redis.dump(key) for key in keys}
    stop, seen = asyncio.Event(), list[Event]()
    with begun(tmp_path / "out", queue.job) as work:
        collecting = asyncio.create_task(collect(queue, work, token="c", stop=stop, report=seen.append))
        await queue.commit("w", [Finished(3, 0, records.encode(record(3)))], [])

        async def acked() -> bool:
            return (await queue.snapshot()).acked == 4

        await wait_until(acked, description="four results acked")
        async with redis.pipeline(transaction=True) as pipe:
            for key in [key async for key in redis.scan_iter()]:
                if key in before or queue.job in key.decode():
                    pipe.delete(key)
            for key, value in before.items():
                pipe.restore(key, 0, value)
            await pipe.execute()
        await queue.commit("w", [Finished(3, 0, records.encode(record(3, cls=FailureClass.TIMEOUT)))], [])
        await queue.commit("w", [Finished(i, 0, records.encode(record(i))) for i in (4, 5)], [])
        done = await collecting
        assert (done.new, done.repeated, done.rolled_back, done.finished) == (6, 4, True, True)
        assert any(isinstance(e, RolledBack) for e in seen)
        finish(work, fed=True)
        summary = prove(work, await queue.snapshot(), rolled_back=done.rolled_back)
        assert (summary.ok, summary.failed) == (6, 0)
    assert ordinals(tmp_path / "out") == list(range(6))


async def test_looking_takes_nothing(redis: Redis):
    """`results` without the lease reads everything in order, page by page, and leaves it."""
    queue = await job_of(redis, 40)
    await answer(queue, [30, 2, 17, 3])
    lines = [line async for line in peek(queue)]
    assert lines == [entry(queue.job, record(i)).line for i in (2, 3, 17, 30)]
    assert (await queue.snapshot()).acked == 0


async def test_failed_records_are_counted_by_class(redis: Redis, tmp_path: Path):
    """What the collector tells and what the store counts are the same."""
    queue = await job_of(redis, 3)
    await queue.claim("w", 3, 1 << 20, 30_000, believed=True, suspects=False)
    kinds = [None, FailureClass.TIMEOUT, FailureClass.BAD_REQUEST]
    await queue.commit("w", [Finished(i, 0, records.encode(record(i, cls=c))) for i, c in enumerate(kinds)], [])
    seen: list[Event] = []
    with begun(tmp_path / "out", queue.job) as work:
        await collect(queue, work, token="c", report=seen.append)
        finish(work, fed=True)
        snapshot = await queue.snapshot()
        summary = prove(work, snapshot)
        assert work.ledger.failed == snapshot.by_class
    assert summary.by_class == {"bad_request": 1, "timeout": 1}
    last = seen[-1]
    assert isinstance(last, Progress)
    assert (last.new, last.failed, last.acked) == (3, 2, 3)
