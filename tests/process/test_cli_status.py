"""`producer status`: short for people, a contract for scripts, everything for a bug report."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from redis.asyncio import Redis
from tests.support.cli import producer, write_requests
from tests.support.store import StoreProcess

from gristmill.holders import holder
from gristmill.queue.leasequeue import LeaseQueue
from gristmill.queue.replies import Role

KEYS = {"job", "state", "total", "ok", "failed", "waiting", "in_flight", "not_run", "by_class", "attempts", "tokens",
        "wall_s"}  # fmt: skip
"""The named keys of `run`, `status` and `submit --wait`."""


def submitted(tmp_path: Path, url: str, *more: object) -> str:
    path = write_requests(tmp_path / "in.jsonl", 6)
    done = producer("submit", path, "-m", "m", "--redis", url, *more)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_json_has_the_named_keys_only(tmp_path: Path, redis: Redis, shared_store: StoreProcess):
    """Scripts rely on them; a new one would be a change of the contract."""
    job = submitted(tmp_path, shared_store.url)
    told = json.loads(producer("status", job, "--json", "--redis", shared_store.url).stdout)
    assert set(told) == KEYS
    assert set(told["tokens"]) == {"prompt", "completion"}


def test_full_has_what_a_bug_report_needs(tmp_path: Path, redis: Redis, shared_store: StoreProcess):
    """Versions, store, counters, leases, pause, manifest; and the contract's object inside."""
    job = submitted(tmp_path, shared_store.url, "--name", "night run", "--max-in-flight", "7")
    producer("pause", job, "--redis", shared_store.url)
    told = json.loads(producer("status", job, "--full", "--json", "--redis", shared_store.url).stdout)
    assert set(told["job"]) == KEYS
    assert {"gristmill", "Python", "system", "redis-py"} == set(told["versions"])
    assert told["store"]["policy"] == "noeviction"
    assert told["store"]["appendonly"] is True
    assert told["counters"]["prod"] == 6
    assert told["paused"]["reason"] == "user"
    assert told["manifest"]["max_in_flight"] == 7
    assert told["manifest"]["input"]["name"] == "in.jsonl"
    text = producer("status", job, "--full", "--redis", shared_store.url).stdout
    for word in ("versions ", "server ", "counters ", "idle ", "paused     user", "manifest "):
        assert f"\n{word}" in text


def test_full_tells_no_secret(tmp_path: Path, redis: Redis, shared_store: StoreProcess):
    """Neither the system message, nor a value put into bodies, nor a password of a URL, nor where files lie."""
    job = submitted(tmp_path, shared_store.url, "--system", "SENTINEL-1", "--set", "user=SENTINEL-2")
    for more in ((), ("--json",)):
        text = producer("status", job, "--full", "--redis", shared_store.url, *more).stdout
        assert "SENTINEL" not in text
        assert str(tmp_path) not in text


def a_dead_pid() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        return process.pid


async def test_a_killed_feeder_of_this_machine_is_lost_now(tmp_path: Path, redis: Redis, shared_store: StoreProcess):
    """Its lease lives for half a minute, but its process does not; the state says so, too, and names no dead holder."""
    job = submitted(tmp_path, shared_store.url)
    queue = await LeaseQueue.attach(redis, job)
    await redis.hset(queue.keys.meta, mapping={"closed": 0})
    name = holder("producer submit").rpartition(" ")[0] + f" {a_dead_pid()}"
    assert (await queue.take_lease(Role.FEEDER, "t", name, 60_000, force=True)).granted
    text = producer("status", job, "--redis", shared_store.url).stdout
    assert "state      running, feeder lost" in text
    assert "feeder lost at line" in text
    assert "\nfeeder     " not in text
    assert f"{job}  running (feeder lost)" in producer("ls", "--redis", shared_store.url).stdout
    alive = holder("producer submit")
    assert (await queue.take_lease(Role.FEEDER, "t", alive, 60_000, force=True)).granted
    text = producer("status", job, "--redis", shared_store.url).stdout
    assert "state      running, feeding" in text
    assert f"feeder     {alive}" in text
    assert "feeder lost" not in producer("ls", "--redis", shared_store.url).stdout
