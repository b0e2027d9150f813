"""The way to the store breaks at the worst moments, made by a proxy: nothing is lost, nothing is counted twice."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import get_args

import pytest
import uvloop
from redis.asyncio import Redis
from tests.support import feeding
from tests.support.cli import producer
from tests.support.invariants import check_invariants
from tests.support.jobs import chat, results, sealed_job, worker
from tests.support.proxy import Proxy, Snag, to_url
from tests.support.standin import Standin
from tests.support.store import StoreProcess
from tests.support.wait import wait_until

from gristmill.contract.lifecycle import JobState
from gristmill.outlet.collector import collect
from gristmill.outlet.lease import CollectorLease
from gristmill.outlet.workdir import Work
from gristmill.queue import LeaseQueue, loader
from gristmill.queue.registry import list_jobs
from gristmill.queue.replies import Role
from gristmill.queue.store import connect

SNAGS = get_args(Snag)


@pytest.fixture
async def way(shared_store: StoreProcess, redis: Redis) -> AsyncIterator[Proxy]:
    """A proxy before the store; the store is empty at the start of the test."""
    async with Proxy(to_url(shared_store.url)) as proxy:
        yield proxy


def through(proxy: Proxy, **options: float) -> Redis:
    """A client as the product makes it, through `proxy`."""
    return connect(f"redis://127.0.0.1:{proxy.port}/0", **options)


def test_a_connection_that_was_reset_while_idle_is_replaced(shared_store: StoreProcess):
    """On the daemon's own loop, a command on a connection that the store's side has reset goes out on a new one."""

    async def story() -> None:
        async with Proxy(to_url(shared_store.url)) as proxy, through(proxy) as redis:
            for _ in range(5):
                assert await redis.ping()
                assert proxy.reset_all() == 1
                await asyncio.sleep(0.05)  # the reset has to arrive before the next command, unseen by anybody
            assert await redis.ping()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(story())


async def warm(redis: Redis, *names: str) -> None:
    """Let the store know the scripts, so that the first call of each is the real one."""
    for name in names:
        await redis.script_load(loader.scripts()[name].text)


@pytest.mark.parametrize("snag", SNAGS)
@pytest.mark.parametrize("call", ["claim", "commit"])
async def test_a_worker_runs_each_request_once(way: Proxy, redis: Redis, call: str, snag: Snag):
    """Whatever is lost of a claim or a commit, request or reply: every request is answered, and sent once."""
    queue = await sealed_job(redis, [chat(row) for row in range(60)], first_alone=0)
    await warm(redis, "claim", "commit")
    way.arm(snag, loader.scripts()[call].sha.encode())
    async with Standin() as standin, through(way) as client:
        async with worker(client, standin.url, slots=16):
            await wait_until(lambda: is_complete(queue), description="every request is answered")
        assert standin.stats["requests"] == 60
    assert way.hurt[snag] == 1
    assert sorted(await results(queue)) == list(range(60))
    seen = await check_invariants(redis, queue)
    assert not seen.held_indices


async def is_complete(queue: LeaseQueue) -> bool:
    return (await queue.snapshot()).state is JobState.COMPLETE


@pytest.mark.parametrize("snag", SNAGS)
@pytest.mark.parametrize("call", ["seal", "close", "lease"])
async def test_a_feeder_seals_each_line_once(way: Proxy, redis: Redis, tmp_path: Path, call: str, snag: Snag):
    """Whatever is lost of a seal, a close or the lease: the input is in the store once, whole and in order."""
    queue = await feeding.new_job(redis)
    path = feeding.write(tmp_path / "in.jsonl", feeding.prompts(600))
    await warm(redis, "seal", "close", "lease")
    way.arm(snag, loader.scripts()[call].sha.encode())
    async with through(way) as client:
        fed = await feeding.run(await LeaseQueue.attach(client, queue.job), path)
    assert (fed.sealed, fed.closed) == (600, True)
    assert way.hurt[snag] == 1
    await check_invariants(redis, queue)
    frames = feeding.in_order(await feeding.claimed(queue))
    assert [frame.ordinal for frame in frames] == list(range(600))


@pytest.mark.parametrize("snag", SNAGS)
@pytest.mark.parametrize("call", ["ack", "lease"])
async def test_a_collector_writes_each_result_once(way: Proxy, redis: Redis, tmp_path: Path, call: str, snag: Snag):
    """Whatever is lost of an ack or the lease: each result is durable once, and nothing stays in the store."""
    queue = await sealed_job(redis, [chat(row) for row in range(100)])
    async with Standin() as standin, worker(redis, standin.url):
        await wait_until(lambda: is_complete(queue), description="every request is answered")
    await warm(redis, "ack", "lease")
    way.arm(snag, loader.scripts()[call].sha.encode())
    async with through(way) as client:
        with Work.open(tmp_path / "out.jsonl") as work:
            work.begin(queue.job, epoch=queue.epoch, store="test")
            collected = await collect(await LeaseQueue.attach(client, queue.job), work, token="c")
            assert work.ledger.new == 100
    assert (collected.finished, collected.new) == (True, 100)
    assert way.hurt[snag] == 1
    seen = await check_invariants(redis, queue)
    assert len(seen.acked) == 100


async def test_a_stall_longer_than_the_time_out_costs_nothing(way: Proxy, redis: Redis):
    """A store that says nothing for longer than the time-out of a call is waited for; no request is sent twice."""
    queue = await sealed_job(redis, [chat(row) for row in range(200)], first_alone=0)
    async with Standin(latency=0.05) as standin, through(way, timeout_s=0.3) as client:
        async with worker(client, standin.url, slots=8):
            await wait_until(lambda: standin.stats["requests"] >= 30, description="it is under way")
            way.stall()
            await wait_until(lambda: not standin.stats["in_flight"], description="the worker has run dry")
            await asyncio.sleep(1.0)  # the stall has to outlast the time-out, three times
            way.flow()
            await wait_until(lambda: is_complete(queue), description="every request is answered")
        assert standin.stats["requests"] == 200
    await check_invariants(redis, queue)


class Forgetful(Redis):
    """A client of a store that is restarted before each of its first `restarts` commands that name a script."""

    restarts = 3

    async def execute_command(self, *words: object, **options: object) -> object:
        if words[0] == "EVALSHA" and self.restarts:
            self.restarts -= 1
            await super().execute_command("SCRIPT FLUSH")
        return await super().execute_command(*words, **options)


async def test_a_store_that_forgets_a_script_again_is_told_again(redis: Redis, shared_store: StoreProcess):
    """Restarted between being told a script and being asked for it, more than once: the call is carried out."""
    queue = await sealed_job(redis, [chat(row) for row in range(3)], first_alone=0)
    async with Forgetful.from_pool(connect(shared_store.url).connection_pool) as forgetful:
        claimed = await (await LeaseQueue.attach(forgetful, queue.job)).claim(
            "w", 3, 1 << 20, 30_000, believed=False, suspects=False
        )
    assert len(claimed.claimed) == 3
    await queue.remove()


async def test_many_calls_of_an_unknown_script_are_carried_out(redis: Redis):
    """A pipeline of calls that the store does not know the script of: each is done once."""
    queue = await sealed_job(redis, [chat(row) for row in range(4)], first_alone=0)
    for token in "abcd":
        assert len((await queue.claim(token, 1, 1 << 20, 1, believed=False, suspects=False)).claimed) == 1
    await redis.script_flush()
    await asyncio.sleep(0.01)  # the leases of 1 ms have to run out
    assert await queue.reap_expired() == 4
    assert (await queue.snapshot()).waiting == 4
    await queue.remove()


async def test_a_collector_takes_back_what_a_dead_one_was_given_by_a_lost_suffix(redis: Redis, tmp_path: Path):
    """The store names an earlier collector of this machine again, which is dead: the living one goes on."""
    queue = await sealed_job(redis, [chat(row) for row in range(20)])
    gone = await asyncio.create_subprocess_exec("true")
    await gone.wait()
    dead = f"producer results, {socket.gethostname()} pid {gone.pid}"
    async with Standin() as standin, worker(redis, standin.url):
        await wait_until(lambda: is_complete(queue), description="every request is answered")
    with Work.open(tmp_path / "out.jsonl") as work:
        work.begin(queue.job, epoch=queue.epoch, store="test")
        lease = CollectorLease(queue, "c", "us", 30_000)
        await lease.take()
        assert (await queue.take_lease(Role.COLLECTOR, "before", dead, 30_000, force=True)).granted
        await lease.retake()
        assert not lease.lost
        assert await queue.renew_lease(Role.COLLECTOR, "c", 30_000)


async def test_a_removal_that_died_half_way_is_finished_by_the_same_command(redis: Redis, shared_store: StoreProcess):
    """`rm` was killed after its first step: nobody can attach to the job, and `rm` given again removes it all."""
    queue = await sealed_job(redis, [chat(row) for row in range(20)])
    await redis.hset(queue.keys.meta, "state", "deleting")
    done = await asyncio.to_thread(producer, "rm", queue.job, "--redis", shared_store.url)
    assert (done.returncode, f"job {queue.job} is removed" in done.stderr) == (0, True), done.stderr
    assert not await redis.keys(queue.keys.pattern)
    assert await list_jobs(redis) == []
    again = await asyncio.to_thread(producer, "rm", queue.job, "--redis", shared_store.url)
    assert (again.returncode, "there is no job" in again.stderr) == (2, True)
