"""A real collector process, killed with SIGKILL at random points, again and again: nothing is lost or stands twice."""

from __future__ import annotations

import asyncio
import random
import sys
import textwrap
from pathlib import Path

from redis.asyncio import Redis
from tests.support.jobs import chat, sealed_job
from tests.support.outlet import entry, record
from tests.support.store import StoreProcess

from gristmill.contract import record as records
from gristmill.queue import LeaseQueue
from gristmill.queue.replies import Finished

LINES = 600
KILLS = 6

COLLECTOR = textwrap.dedent("""
    import asyncio, sys
    from pathlib import Path
    from gristmill.outlet.assemble import Grower, finish
    from gristmill.outlet.collector import collect
    from gristmill.outlet.proof import prove
    from gristmill.outlet.workdir import Work
    from gristmill.queue import LeaseQueue
    from gristmill.queue.store import connect

    async def main(url, job, out):
        redis = connect(url)
        queue = await LeaseQueue.attach(redis, job)
        with Work.open(Path(out)) as work:
            work.resume() if work.previous else work.begin(job)
            grower = Grower(work)
            print("ready", flush=True)
            await collect(queue, work, token="c", take=True, grow=grower.step, round_bytes=4096)
            finish(work, fed=True, grower=grower)
            prove(work, await queue.snapshot())
            grower.close()
            work.remove()
        await redis.aclose()

    asyncio.run(main(*sys.argv[1:]))
""")


async def start(url: str, job: str, out: Path) -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", COLLECTOR, url, job, str(out), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    return process


async def answer(queue: LeaseQueue, indices: list[int]) -> None:
    done = [Finished(i, 0, records.encode(record(i))) for i in indices]
    assert (await queue.commit("w", done, [])).new == len(indices)


async def test_a_collector_that_is_killed_again_and_again_loses_nothing(
    redis: Redis, shared_store: StoreProcess, tmp_path: Path
):
    """Each session is killed within 50 ms of its start, while answers come in any order."""
    out = tmp_path / "out"
    queue = await sealed_job(redis, [chat(i) for i in range(LINES)], run_size=LINES, first_alone=0, block_size=32)
    await queue.claim("w", LINES, 1 << 30, 60_000, believed=True, suspects=False)
    order = random.Random(7).sample(range(LINES), LINES)
    part = LINES // (KILLS + 1)
    for kill in range(KILLS):
        process = await start(shared_store.url, queue.job, out)
        await answer(queue, order[kill * part : (kill + 1) * part])
        await asyncio.sleep(random.uniform(0, 0.05))  # the kill must fall anywhere within the rounds
        process.kill()
        assert await process.wait() == -9
    await answer(queue, order[KILLS * part :])
    process = await start(shared_store.url, queue.job, out)
    assert await process.wait() == 0
    assert out.read_bytes() == b"".join(entry(queue.job, record(i)).line for i in range(LINES))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (await queue.snapshot()).acked == LINES
