"""The life of a submitted job as its owner steers it: budgets, stragglers, and how long it is kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from redis import Redis as SyncRedis
from redis.asyncio import Redis
from tests.support.cli import producer, write_requests
from tests.support.queues import claim, finish
from tests.support.store import StoreProcess
from tests.support.wait import wait_until

from gristmill.contract.failure import FailureClass
from gristmill.queue import LeaseQueue


@pytest.fixture
def url(shared_store: StoreProcess) -> str:
    with SyncRedis.from_url(shared_store.url) as client:
        client.flushall()
    return shared_store.url


def submit(tmp_path: Path, url: str, n: int, *more: str) -> str:
    """Submit `n` requests and return the job's id."""
    done = producer("submit", write_requests(tmp_path / "in.jsonl", n), "-m", "m", "--redis", url, *more)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


async def test_a_spent_budget_is_told_and_a_resume_gives_a_new_one(tmp_path: Path, redis: Redis, url: str):
    """`status` says how many failed, of which class, and how it goes on; so it does until as many have failed anew."""
    job = submit(tmp_path, url, 50, "--max-failures", "3")
    queue = await LeaseQueue.attach(redis, job)
    await finish(queue, "w.0", (await claim(queue, "w.0", 1)).claimed)
    for _ in range(2):
        for _ in range(3):  # one at a time: after a resume the first ones go alone again
            await finish(queue, "w.0", (await claim(queue, "w.0", 1)).claimed, FailureClass.TIMEOUT)
        told = producer("status", job, "--redis", url).stdout
        assert "state      paused (budget)" in told
        assert (
            f"requests have failed, the limit is 3, all of them timeout. Look at them, then `producer resume {job}`"
            in told
        )
        assert producer("resume", job, "--redis", url).returncode == 0
        assert json.loads(producer("status", job, "--json", "--redis", url).stdout)["state"] == "running"


async def test_stragglers_are_listed_and_given_up(tmp_path: Path, redis: Redis, url: str):
    """Look first, then the same command with --give-up; without an age nothing is given up."""
    job = submit(tmp_path, url, 5)
    queue = await LeaseQueue.attach(redis, job)
    claimed = (await claim(queue, "w.0", 3)).claimed
    await finish(queue, "w.0", claimed[:1])

    async def old() -> bool:
        return (await queue.snapshot()).now_ms > claimed[0].claim + 200

    await wait_until(old, description="they are old enough")
    table = producer("stragglers", job, "--redis", url).stdout.splitlines()
    assert [line.split()[0] for line in table] == ["INDEX", "1", "2"]
    assert table[1].endswith("in flight, worker w.0  c1")
    listed = json.loads(producer("stragglers", job, "--json", "--redis", url, "--older-than", "0.1s").stdout)
    assert [(row["index"], row["custom_id"], row["worker"]) for row in listed] == [(1, "c1", "w.0"), (2, "c2", "w.0")]
    assert json.loads(producer("stragglers", job, "--json", "--redis", url, "--older-than", "1h").stdout) == []
    assert producer("stragglers", job, "--redis", url, "--give-up").returncode == 2
    done = producer("stragglers", job, "--redis", url, "--give-up", "--older-than", "0.1s")
    assert (done.returncode, f"2 requests of job {job} are given up; it is running" in done.stderr) == (0, True)
    assert json.loads(producer("status", job, "--json", "--redis", url).stdout)["by_class"] == {"cancelled": 2}
    assert json.loads(producer("stragglers", job, "--json", "--redis", url).stdout) == []


async def test_status_names_what_a_job_waits_for(tmp_path: Path, redis: Redis, url: str):
    """As soon as nothing has finished for a while; people read for how long, scripts get the reason."""
    job = submit(tmp_path, url, 5)
    full = ("status", job, "--full", "--json", "--redis", url)
    assert json.loads(producer(*full).stdout)["waiting_for"] is None
    queue = await LeaseQueue.attach(redis, job)
    await redis.hset(queue.keys.meta, "created_at", (await queue.snapshot()).now_ms - 3_600_000)
    told = json.loads(producer(*full).stdout)
    assert told["waiting_for"]["reason"] == "daemon"
    assert told["idle_s"] >= 3600
    line = next(x for x in producer("status", job, "--redis", url).stdout.splitlines() if x.startswith("waiting"))
    assert line.startswith("waiting    1:00:0")
    assert "without a finished request, for a daemon: none is connected" in line
