"""A killed command goes on at once when it is given again: what a dead process of this machine held is free."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from redis.asyncio import Redis
from tests.support.chaos_input import Sheet
from tests.support.cli import Background, command, environment, producer
from tests.support.jobs import chat, sealed_job, worker
from tests.support.standin import Standin
from tests.support.store import StoreProcess
from tests.support.wait import wait_until


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
