"""`producer ls` over a store with more jobs than are asked for at once."""

from __future__ import annotations

import json

import pytest
from redis.asyncio import Redis
from tests.support.queues import make_job
from tests.support.store import StoreProcess

from gristmill.cli import ls
from gristmill.cli._options import StoreOptions


async def test_many_jobs_are_listed_once_each(
    redis: Redis, shared_store: StoreProcess, capsys: pytest.CaptureFixture[str]
):
    """However many are asked for at the same time; a job that is being removed is left out."""
    names = [f"n{number}" for number in range(2 * ls.AT_ONCE + 3)]
    queues = [await make_job(redis, name=name) for name in names]
    await redis.hset(f"gm:{{{queues[5].job}}}:m", "state", "deleting")
    assert await ls._ls(StoreOptions(redis=shared_store.url, state_dir=None), True) == 0
    listed = [job["name"] for job in json.loads(capsys.readouterr().out)]
    assert sorted(listed, key=names.index) == [name for name in names if name != "n5"]
    for queue in queues:
        await queue.remove()
