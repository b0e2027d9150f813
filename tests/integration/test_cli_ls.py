"""`producer ls` over a store with more jobs than are asked for at once."""

from __future__ import annotations

import json

import pytest
from redis.asyncio import Redis
from tests.support.queues import make_job
from tests.support.store import StoreProcess

from gristmill.cli import ls
from gristmill.cli._jobs import attach
from gristmill.cli._options import StoreOptions
from gristmill.cli._session import Store
from gristmill.cli._submitting import begun_before
from gristmill.contract.frame import FormatError
from gristmill.contract.keys import JobKeys


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


async def test_a_job_of_another_version_hides_no_other(
    redis: Redis, shared_store: StoreProcess, capsys: pytest.CaptureFixture[str]
):
    """It is named and left out of the list; a command for that job says the same and not that there is none, and
    `submit` looks past it for a job that it began before."""
    foreign, ours = await make_job(redis, name="foreign"), await make_job(redis, name="ours")
    spec = JobKeys(foreign.job).spec
    written = await redis.get(spec)
    await redis.set(spec, written.replace(b'"format":', b'"format":9'))
    options = StoreOptions(redis=shared_store.url, state_dir=None)
    assert await ls._ls(options, False) == 0
    told = capsys.readouterr()
    assert "ours" in told.out
    assert f"job {foreign.job} is left out: manifest format 9" in told.err
    store = Store(url=shared_store.url, redis=redis, embedded=None)
    with pytest.raises(FormatError, match="manifest format 9"):
        await attach(store, foreign.job)
    assert await begun_before(store, "a digest of nobody") is None
    for queue in (foreign, ours):
        await queue.remove()
