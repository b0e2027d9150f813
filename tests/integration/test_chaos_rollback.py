"""The store loses its last writes and requests are run again: what one process learnt of it, the next one knows."""

from __future__ import annotations

from pathlib import Path

from redis.asyncio import Redis
from tests.support.feeding import Past
from tests.support.jobs import chat, sealed_job
from tests.support.outlet import begun, record

from gristmill.contract import record as records
from gristmill.contract.failure import FailureClass
from gristmill.outlet.assemble import finish
from gristmill.outlet.collector import Collected, Until, collect
from gristmill.outlet.proof import prove
from gristmill.outlet.workdir import Work
from gristmill.queue import LeaseQueue
from gristmill.queue.replies import Finished


async def commit(queue: LeaseQueue, rows: range, cls: FailureClass | None = None) -> None:
    done = [Finished(row, 0, records.encode(record(row, cls=cls))) for row in rows]
    assert (await queue.commit("w", done, [])).new == len(rows)


async def test_a_row_that_ended_otherwise_the_second_time_is_proved_by_a_later_process(redis: Redis, tmp_path: Path):
    """First ok and in the file, then lost in the store and failed: the first result stands, whoever counts in the end.

    Three collectors take part, each a process of its own: the second meets the result that was made twice, the third
    has never heard of it.
    """
    queue = await sealed_job(redis, [chat(row) for row in range(10)], first_alone=0)
    await queue.claim("w", 10, 1 << 30, 30_000, believed=False, suspects=False)
    past = Past(redis, queue.keys.pattern)
    await past.keep()
    out = tmp_path / "out"

    async def collected(work: Work, until: Until) -> Collected:
        return await collect(await LeaseQueue.attach(redis, queue.job), work, token="c", until=until)

    with begun(out, queue.job) as work:
        await commit(queue, range(1))
        assert (await collected(work, Until.DRAINED)).new == 1
    await past.restore()
    with Work.open(out) as work:
        work.resume()
        await commit(queue, range(1), FailureClass.BAD_REQUEST)
        assert (await collected(work, Until.DRAINED)).repeated == 1
    with Work.open(out) as work:
        work.resume()
        await commit(queue, range(1, 10))
        done = await collected(work, Until.FINISHED)
        assert (done.new, done.repeated, done.rolled_back) == (9, 0, False)
        finish(work, fed=True)
        snapshot = await queue.snapshot()
        assert (snapshot.done, snapshot.failed) == (10, 1)
        summary = prove(work, snapshot, rolled_back=done.rolled_back)
    assert (summary.ok, summary.failed) == (10, 0)
