"""Requests under suspicion that are alone: run in a process of their own, with their worker as the witness."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis
from tests.process.daemons import Daemon
from tests.support.invariants import check_invariants
from tests.support.jobs import chat, results, sealed_job
from tests.support.standin import StandinProcess
from tests.support.store import StoreProcess
from tests.support.wait import wait_until, wait_until_sync

from gristmill.contract.failure import FailureClass
from gristmill.contract.lifecycle import JobState, PauseReason
from gristmill.queue import LeaseQueue

SLOW_S = 60.0
"""Longer than any of these tests: who waits for that never ends by itself."""


def named(name: str, daemon: Daemon) -> list[int]:
    """The pids of the daemon's processes that are called `name`."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            _, comm, rest = (folder / "stat").read_text().replace("(", ")").split(")", 2)
        except (OSError, ValueError):
            continue
        state, _, _, session, *_ = rest.split()
        if comm == name and int(session) == daemon.process.pid and state != "Z":
            found.append(int(folder.name))
    return found


def cell_of(daemon: Daemon) -> int:
    """The pid of the cell that runs; waits for one."""
    wait_until_sync(lambda: len(named("gm-cell-0", daemon)) == 1, description=f"a cell runs: {daemon.log[-2000:]}")
    return named("gm-cell-0", daemon)[0]


@pytest.fixture
def standin() -> Iterator[StandinProcess]:
    with StandinProcess() as one:
        yield one


@pytest.fixture
def daemon(shared_store: StoreProcess, standin: StandinProcess, tmp_path: Path) -> Iterator[Daemon]:
    """One worker, which gets whatever is suspect as soon as it is up."""
    config = tmp_path / "gristmill.toml"
    config.write_text(
        f'workers = 1\nconcurrency = 2\ndrain_s = 0.2\nmetrics = false\n[endpoints.e]\nurl = "{standin.url}"\n'
    )
    one = Daemon(tmp_path, "--config", str(config), redis=shared_store.url)
    yield one
    one.close()


async def suspect(redis: Redis) -> LeaseQueue:
    """A job of one request that a crashed worker held alone."""
    queue = await sealed_job(redis, [chat(0)], first_alone=0)
    await queue.claim("x.0.0.0", 1, 1 << 20, 30_000, believed=False, suspects=False)
    assert (await queue.reap("x.0.0.0", force=True, crashed=True)).suspects == 1
    return queue


async def reaches(queue: LeaseQueue, state: JobState) -> None:
    async def holds() -> bool:
        return (await queue.snapshot()).state is state

    await wait_until(holds, description=f"the job is {state}")


async def is_free(queue: LeaseQueue) -> bool:
    """Nobody holds its request, and it is still to be run."""
    seen = await queue.snapshot()
    return (seen.in_flight, seen.suspects) == (0, 1)


async def test_who_kills_the_worker_makes_no_poison(redis: Redis, daemon: Daemon, standin: StandinProcess):
    """An innocent request whose worker is killed from outside again and again, while it runs alone, is answered."""
    standin.control(latency=SLOW_S)
    queue = await suspect(redis)
    for generation in range(4):
        cell = cell_of(daemon)
        if generation == 3:
            standin.control(latency=0)
        os.kill(daemon.pid_of("worker-0", generation), signal.SIGKILL)
        wait_until_sync(lambda pid=cell: pid not in named("gm-cell-0", daemon), description="the cell dies with it")
    await reaches(queue, JobState.COMPLETE)
    assert (await results(queue))[0].ok
    await check_invariants(redis, queue)


async def test_who_kills_a_cell_twice_makes_no_poison(redis: Redis, daemon: Daemon, standin: StandinProcess):
    """A third death would; the request is sent once more instead, and the worker lives all the while."""
    standin.control(latency=SLOW_S)
    queue = await suspect(redis)
    for death in (1, 2):
        cell = cell_of(daemon)
        if death == 2:
            standin.control(latency=0)
        os.kill(cell, signal.SIGKILL)
        daemon.says("has ended the process that ran it alone", times=death)
    await reaches(queue, JobState.COMPLETE)
    assert (await results(queue))[0].ok
    assert "worker-0 crashed" not in daemon.log


async def test_three_deaths_of_cells_make_poison(redis: Redis, daemon: Daemon, standin: StandinProcess):
    """The record is failed with its class and says why; no worker has died."""
    standin.control(latency=SLOW_S)
    queue = await suspect(redis)
    for death in (1, 2, 3):
        os.kill(cell_of(daemon), signal.SIGSEGV)
        daemon.says("has ended the process that ran it alone", times=death)
    await reaches(queue, JobState.COMPLETE)
    record = (await results(queue))[0]
    assert (record.cls, record.detail.message) == (
        FailureClass.POISON,
        "each process that ran this request alone died of it; it is not run again",
    )
    assert "worker-0 crashed" not in daemon.log


async def test_a_worker_that_drains_ends_its_cell(redis: Redis, daemon: Daemon, standin: StandinProcess):
    """What has not ended within the budget goes back, under suspicion as before; nothing is left of ward and cell."""
    standin.control(latency=SLOW_S)
    queue = await suspect(redis)
    cell_of(daemon)
    assert daemon.stop() == 0
    assert await is_free(queue)
    wait_until_sync(
        lambda: not named("gm-cell-0", daemon) + named("gm-ward-0", daemon), description="ward and cell have ended"
    )
    await check_invariants(redis, queue)


async def test_a_request_that_only_waits_leaves_its_cell_when_the_job_pauses(
    redis: Redis, daemon: Daemon, standin: StandinProcess
):
    """As in a worker: what waits for its next attempt, here for 9 s, goes back at once."""
    standin.control(faults=[{"kind": "status", "status": 503, "retry_after": 9}])
    queue = await suspect(redis)
    wait_until_sync(lambda: standin.stats["requests"] > 0, description="it was refused")
    await queue.pause(PauseReason.USER, "")

    async def free() -> bool:
        return await is_free(queue)

    await wait_until(free, description="it is back in the queue", timeout_s=5)
    assert standin.stats["requests"] == 1


async def test_a_job_that_is_removed_ends_its_cell_and_the_next_one_gets_one(
    redis: Redis, daemon: Daemon, standin: StandinProcess
):
    """The ward serves on after a run that was cut."""
    standin.control(latency=SLOW_S)
    queue = await suspect(redis)
    first = cell_of(daemon)
    await queue.remove()
    wait_until_sync(lambda: first not in named("gm-cell-0", daemon), description="the cell is ended")
    standin.control(latency=0)
    queue = await suspect(redis)
    await reaches(queue, JobState.COMPLETE)
    assert (await results(queue))[0].ok
    assert "worker-0 crashed" not in daemon.log


async def test_a_worker_without_its_ward_runs_suspects_itself(redis: Redis, daemon: Daemon):
    """Whoever killed the ward costs no request."""
    wait_until_sync(lambda: named("gm-ward-0", daemon) != [], description="the ward is there")
    os.kill(named("gm-ward-0", daemon)[0], signal.SIGKILL)
    for _ in range(2):
        queue = await suspect(redis)
        await reaches(queue, JobState.COMPLETE)
        assert (await results(queue))[0].ok
