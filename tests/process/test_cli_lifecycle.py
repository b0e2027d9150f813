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
