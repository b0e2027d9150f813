"""The crew over a real queue: what it knows of the feeder when the work ends."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from tests.support.outlet import begun
from tests.support.queues import fed_job

from gristmill.cli._feeding import FeederEnd
from gristmill.cli._session import Store
from gristmill.cli._watching import Watcher
from gristmill.cli._working import Crew, End
from gristmill.queue.leasequeue import LeaseQueue


class Silent:
    """Stands in for the terminal."""

    def show(self, view: object) -> None: ...

    def say(self, text: str) -> None: ...


class Lingering:
    """A feeder whose process has done its work, but ends only when it is stopped."""

    def __init__(self) -> None:
        self._stopped = asyncio.Event()

    async def run(self) -> FeederEnd:
        await self._stopped.wait()
        return FeederEnd(0)

    async def stop(self) -> None:
        self._stopped.set()

    def kill(self) -> None:
        self._stopped.set()


def crew(queue: LeaseQueue, redis: Redis, out: Path) -> Crew:
    """A crew without a daemon, with a feeder that lingers."""
    watcher = Watcher(queue, Store(url="", redis=redis, embedded=None), Silent())  # type: ignore[arg-type]
    feeder: Any = Lingering()
    return Crew(queue, begun(out, queue.job), watcher, token="t", holder="test", feeder=feeder)


async def test_complete_job_was_fed_though_its_feeder_lingers(redis: Redis, tmp_path: Path):
    """With nothing to send the job is complete before the feeder's process ends: INPUT was read all the same."""
    queue = await fed_job(redis, 0)
    async with asyncio.timeout(20):
        outcome = await crew(queue, redis, tmp_path / "out.jsonl").run(asyncio.Event())
    assert (outcome.end, outcome.fed) == (End.FINISHED, True)


@pytest.mark.parametrize("close", [False, True])
async def test_job_that_ended_early_was_not_fed(redis: Redis, tmp_path: Path, close: bool):
    """A cancelled job says nothing of lines that its feeder had not come to."""
    queue = await fed_job(redis, 10, close=close)
    await queue.cancel()
    await queue.settle(force=True)
    async with asyncio.timeout(20):
        outcome = await crew(queue, redis, tmp_path / "out.jsonl").run(asyncio.Event())
    assert (outcome.end, outcome.fed) == (End.FINISHED, False)
