"""Keys: one hash tag per job, no two alike, and the whole schema in the table at the head of the module."""

from __future__ import annotations

import re

import pytest
from redis.asyncio import Redis
from tests.support.queues import claim, fed_job, feed, finish, make_job

from gristmill.contract import keys
from gristmill.contract.failure import FailureClass
from gristmill.contract.keys import JobKeys

JOB = JobKeys("j-1")
ALL = [
    JOB.meta, JOB.spec, JOB.runs, JOB.done, JOB.acked, JOB.workers, JOB.waiting, JOB.suspects, JOB.history,
    JOB.unacked, JOB.failures, JOB.chosen, JOB.control, JOB.stage("t"), JOB.payload(3), JOB.held("t"), JOB.block(3),
]  # fmt: skip


def test_every_key_of_a_job_has_its_hash_tag():
    """So every script of a job touches one slot only."""
    assert all(key.startswith("gm:{j-1}:") for key in ALL)
    assert len(set(ALL)) == len(ALL)


@pytest.mark.parametrize("job", ["", "a b", "a{b", "a}b", "a*b", "a:b", "a?b", "[ab]", "a\nb"])
def test_an_id_that_would_break_a_key_or_a_pattern_is_refused(job: str):
    """A hash tag or a glob inside an id would reach the keys of other jobs."""
    with pytest.raises(ValueError, match="a job id has letters"):
        JobKeys(job)


async def test_the_pattern_finds_all_keys_of_the_job_and_of_no_other(redis: Redis):
    """A job whose id begins with another's keeps its keys when that one is removed."""
    for job in ("j-1", "j-11", "xj-1"):
        await redis.set(JobKeys(job).meta, "1")
    found = [key async for key in redis.scan_iter(match=JOB.pattern)]
    assert found == [JOB.meta.encode()]
    await redis.flushall()  # no such job was ever listed


def test_global_keys_never_look_like_a_jobs():
    """The hash tag keeps the two apart."""
    for key in (keys.JOBS, keys.RUNNABLE, keys.DAEMONS, keys.DUE, keys.daemon("d"), keys.board("p")):
        assert key.startswith("gm:")
        assert "{" not in key


async def test_the_table_lists_every_key_with_its_type(redis: Redis):
    """A job with something in every place has exactly the keys and types that the module's table says."""
    rows = re.findall(r"^(\w+)(?::<\w+>)? +(hash|zset|string|bitmap|set) ", keys.__doc__ or "", re.MULTILINE)
    table = {name: "string" if kind == "bitmap" else kind for name, kind in rows}
    queue = await fed_job(redis, 30, close=False)
    await queue.stage("other", {"x": b"1"})
    claimed = (await claim(queue, "w1", 10)).claimed
    await finish(queue, "w1", claimed[:4])
    await finish(queue, "w1", claimed[4:5], FailureClass.CONTEXT_LENGTH)
    await queue.choose([1])
    await redis.hset(queue.keys.control, "attempt", "1")
    await queue.ack("collector-1", {0: [0]})
    await queue.reap("w1", force=True, crashed=True)
    await claim(queue, "w2", 5)
    await queue.reap("w2", force=True, crashed=False)
    await claim(queue, "w3", 2)
    seen = {}
    async for key in redis.scan_iter(match=queue.keys.pattern):
        name = key.decode().removeprefix(queue.keys.pattern[:-1]).partition(":")[0]
        seen[name] = (await redis.type(key)).decode()
    assert seen == table


async def test_the_hash_of_a_job_is_kept_as_a_table(redis: Redis):
    """Every script reads a score of its fields: as a list, each look-up would scan."""
    queue = await make_job(redis)
    assert (await feed(queue, 0, 0, 1)).status == "OK"
    assert await redis.object("encoding", queue.keys.meta) == b"hashtable"
