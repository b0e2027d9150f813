"""A killed command goes on at once when it is given again: what a dead process of this machine held is free."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from tests.support.chaos_input import Sheet, examine
from tests.support.chaos_people import children
from tests.support.cli import Background, command, environment, producer
from tests.support.jobs import chat, sealed_job, worker
from tests.support.standin import Standin
from tests.support.store import StoreProcess
from tests.support.wait import wait_until

from gristmill.cli._feeding import FeederEnd, FeederKeeper
from gristmill.intake.feed_spec import FeedSpec
from gristmill.queue import LeaseQueue
from gristmill.queue.errors import JobNotFoundError
from gristmill.queue.registry import list_jobs
from gristmill.queue.store import connect


async def test_a_killed_collector_is_followed_at_once(tmp_path: Path, redis: Redis, shared_store: StoreProcess):
    """The lease of a collector that was killed is taken over by the same command; nobody waits until it runs out."""
    sheet = Sheet("s", 20)
    queue = await sealed_job(redis, [chat(row, sheet.text(row)) for row in range(sheet.rows)])
    words = command("results", queue.job, "-o", tmp_path / "out.jsonl", "--redis", shared_store.url)
    with Background(words, environment()) as first:

        async def collecting() -> bool:
            lease = (await queue.snapshot()).collector
            return lease is not None and lease.holder.endswith(f" pid {first.pid}")

        await wait_until(collecting, description="the first one has the lease", timeout_s=30)
        os.kill(first.pid, signal.SIGKILL)
        await asyncio.to_thread(first.wait)
        async with Standin() as standin, worker(redis, standin.url):
            done = await asyncio.to_thread(producer, *words[3:])
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    assert len(lines) == sheet.rows
    assert await redis.hget(queue.keys.meta, "acked") == b"20"


async def test_a_living_collector_is_not_robbed(tmp_path: Path, redis: Redis, shared_store: StoreProcess):
    """While the first one lives, a second into another file is refused, and the first keeps the lease."""
    queue = await sealed_job(redis, [chat(row) for row in range(3)])
    words = ("results", queue.job, "--redis", shared_store.url, "-o")
    with Background(command(*words, tmp_path / "one.jsonl"), environment()) as first:

        async def collecting() -> bool:
            return (await queue.snapshot()).collector is not None

        await wait_until(collecting, description="the first one has the lease", timeout_s=30)
        done = await asyncio.to_thread(producer, *words, tmp_path / "two.jsonl")
        assert done.returncode == 2
        assert "is collecting its results" in done.stderr
        lease = (await queue.snapshot()).collector
        assert lease is not None
        assert lease.holder.endswith(f" pid {first.pid}")


@pytest.fixture
def slow_store() -> Iterator[StoreProcess]:
    """A store that never syncs by itself: a submit waits for seconds before it says that its job is durable."""
    store = StoreProcess(fsync="no").start()
    yield store
    store.close()


async def killed_after_closing(redis: Redis, words: list[str]) -> LeaseQueue:
    """Give the command, and kill it when its whole input is in and it has not said so; the job."""
    with Background(words, environment()) as first:
        found: list[LeaseQueue] = []

        async def closed() -> bool:
            for row in await list_jobs(redis):
                try:
                    queue = await LeaseQueue.attach(redis, row.job)
                except JobNotFoundError:  # a job is listed before it is made
                    continue
                snapshot = await queue.snapshot()
                if snapshot.closed and snapshot.feeder is None:
                    found.append(queue)
            return bool(found)

        await wait_until(closed, description="the whole input is in", timeout_s=30)
        os.kill(first.pid, signal.SIGKILL)
        await asyncio.to_thread(first.wait)
        assert first.stdout == ""
    return found[0]


async def test_a_submit_that_died_untold_is_not_submitted_twice(tmp_path: Path, slow_store: StoreProcess):
    """Killed between its last line and its last word: the same command names the same job. Told, it makes another."""
    sheet = Sheet("s", 30)
    sheet.write(tmp_path / "in.jsonl")
    words = command("submit", tmp_path / "in.jsonl", "-m", "standin", "--redis", slow_store.url)
    async with connect(slow_store.url) as redis:
        queue = await killed_after_closing(redis, words)
        await redis.config_set("appendfsync", "everysec")
        again = await asyncio.to_thread(producer, *words[3:])
        assert (again.returncode, again.stdout) == (0, f"{queue.job}\n"), again.stderr
        assert [row.job for row in await list_jobs(redis)] == [queue.job]
        other = await asyncio.to_thread(producer, *words[3:])
        assert other.returncode == 0
        assert other.stdout.strip() != queue.job


async def test_a_submit_that_waited_goes_on_waiting(tmp_path: Path, own_store: StoreProcess):
    """`submit --wait` that was killed when all was fed collects the same job when it is given again."""
    sheet = Sheet("s", 30)
    sheet.write(tmp_path / "in.jsonl")
    words = command("submit", tmp_path / "in.jsonl", "-m", "standin", "--wait", "-o", tmp_path / "out.jsonl",
                    "--redis", own_store.url)  # fmt: skip
    async with connect(own_store.url) as redis, Standin() as standin:
        queue = await killed_after_closing(redis, words)
        async with worker(redis, standin.url):
            again = await asyncio.to_thread(producer, *words[3:])
        assert again.returncode == 0, again.stderr
        assert [row.job for row in await list_jobs(redis)] == [queue.job]
        assert standin.stats["requests"] == sheet.rows
    assert examine(sheet, tmp_path / "out.jsonl").clean


async def test_a_feeder_that_dies_while_the_store_is_away_starts_again():
    """Feeder and store may die together: the keeper can't ask how far it was, and starts the next feeder anyway."""
    asked = 0
    said: list[str] = []

    async def away() -> int:
        nonlocal asked
        asked += 1
        raise RedisConnectionError("away")

    others = set(children(os.getpid()))

    def feeders() -> list[int]:
        return [pid for pid in children(os.getpid()) if pid not in others]

    async def kill_one(number: int) -> None:
        await wait_until(lambda: len(said) == number and bool(feeders()), description=f"feeder {number} runs")
        os.kill(feeders()[0], signal.SIGKILL)

    spec = FeedSpec(redis_url="unix:///nowhere/s", job="j", token="t", holder="h")
    keeper = FeederKeeper(msgspec.json.encode(spec), away, said.append)
    running = asyncio.create_task(keeper.run())
    for number in range(2):
        await kill_one(number)
    await wait_until(lambda: len(said) == 2 and bool(feeders()), description="both deaths were told, a third runs")
    await keeper.stop()
    assert await running == FeederEnd(0)
    assert asked == 3
