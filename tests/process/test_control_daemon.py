"""The whole daemon: real supervisor, control child and workers on a real store, with parts of it killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from redis import Redis as BlockingRedis
from redis.asyncio import Redis
from tests.process.daemons import Daemon
from tests.support.invariants import check_invariants
from tests.support.jobs import chat, results, sealed_job
from tests.support.standin import StandinProcess
from tests.support.wait import wait_until, wait_until_sync

from gristmill.contract.lifecycle import JobState
from gristmill.queue import registry


@pytest.fixture
def daemon(tmp_path):
    """Starts daemons; none is left afterwards."""
    started: list[Daemon] = []

    def start(*options: str, **settings) -> Daemon:
        folder = tmp_path / str(len(started))
        folder.mkdir()
        started.append(Daemon(folder, *options, **settings))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.fixture
def standin():
    with StandinProcess() as one:
        yield one


async def ended(queue) -> None:
    async def complete() -> bool:
        return (await queue.snapshot()).state is JobState.COMPLETE

    await wait_until(complete, description="the job is complete")


async def all_in_flight(queue, count: int) -> None:
    async def held() -> bool:
        return (await queue.snapshot()).in_flight == count

    await wait_until(held, description=f"{count} requests are in flight")


async def registered(redis: Redis):
    async def there() -> bool:
        return bool(await registry.live_daemons(redis))

    await wait_until(there, description="the daemon has registered")
    return (await registry.live_daemons(redis))[0]


async def test_a_daemon_works_registers_and_says_goodbye(daemon, standin, redis, shared_store):
    """It tells the store what it is while it lives; SIGTERM ends it with 0 and takes its row away."""
    queue = await sealed_job(redis, [chat(i) for i in range(20)], pool="night")
    one = daemon("-e", standin.url, "--workers", "2", "--concurrency", "8", "--pool", "night", redis=shared_store.url)
    await ended(queue)
    one.says("2 workers with 8 requests each, pool night, endpoints 127.0.0.1:")
    info = await registered(redis)
    assert (info.pid, info.pool, info.workers, info.slots) == (one.process.pid, "night", 2, 16)
    assert one.stop() == 0, one.log
    assert await registry.live_daemons(redis) == []
    assert all(record.ok for record in (await results(queue)).values())
    await check_invariants(redis, queue)


async def test_a_killed_workers_requests_are_redone_at_once(daemon, standin, redis, shared_store):
    """kill -9 in the middle: nobody waits for a lease to run out, and each request has one result."""
    standin.control(latency=60)
    queue = await sealed_job(redis, [chat(i) for i in range(8)], first_alone=0)
    one = daemon("-e", standin.url, "--workers", "1", "--concurrency", "8", redis=shared_store.url)
    await all_in_flight(queue, 8)
    standin.control(latency=0)
    os.kill(one.pid_of("worker-0"), signal.SIGKILL)
    await ended(queue)
    assert (await queue.snapshot()).redelivered >= 8
    assert all(record.ok for record in (await results(queue)).values())
    assert "crashed (SIGKILL)" in one.log
    assert one.stop() == 0
    await check_invariants(redis, queue)


async def test_a_daemon_tells_of_its_crashes(daemon, standin, redis, shared_store):
    """Whoever waits for its work can see why nothing moves; a stop is no crash."""
    one = daemon("-e", standin.url, "--workers", "1", redis=shared_store.url)
    assert (await registered(redis)).recent_crashes == 0
    for generation in range(2):
        os.kill(one.pid_of("worker-0", generation), signal.SIGKILL)

    async def told() -> bool:
        return (await registered(redis)).recent_crashes == 2

    await wait_until(told, description="the daemon has told of both")


async def test_a_notice_survives_the_control_child_that_had_it(daemon, standin, redis, shared_store):
    """Control hangs, a worker dies, control dies: the next control child reaps."""
    standin.control(latency=60)
    queue = await sealed_job(redis, [chat(i) for i in range(4)], first_alone=0)
    one = daemon("-e", standin.url, "--workers", "1", "--concurrency", "4", redis=shared_store.url)
    await all_in_flight(queue, 4)
    await registered(redis)
    standin.control(latency=0)
    control = one.pid_of("control")
    os.kill(control, signal.SIGSTOP)
    os.kill(one.pid_of("worker-0"), signal.SIGKILL)
    one.says("worker-0 crashed")
    os.kill(control, signal.SIGKILL)
    await ended(queue)
    assert one.pid_of("control", 1)
    assert one.stop() == 0
    assert "not reported as dead" not in one.log


async def test_a_daemon_waits_for_its_store_and_lives_through_an_outage(daemon, standin, own_store):
    """Neither a store that is not there yet nor one that goes away ends a child; both are said, once."""
    own_store.kill()
    one = daemon("-e", standin.url, "--workers", "1", redis=own_store.url)
    one.says("control the store cannot be used")
    own_store.start()
    async with Redis.from_url(own_store.url) as redis:
        await registered(redis)
    own_store.kill()
    one.says("control the store cannot be used", times=2)
    own_store.start()
    one.says("control the store is back", times=2)
    async with Redis.from_url(own_store.url) as redis:
        queue = await sealed_job(redis, [chat(i) for i in range(5)])
        await ended(queue)
    assert one.stop() == 0
    assert "crashed" not in one.log


def test_a_stop_during_an_outage_ends_in_time(daemon, own_store):
    """There is nothing to say goodbye to; the daemon does not wait for it."""
    one = daemon("-e", "http://127.0.0.1:9", "--workers", "1", redis=own_store.url)
    one.says("control connected to the store")
    one.says("worker-0 ready")
    own_store.kill()
    one.says("control the store cannot be used")
    assert one.stop() == 0


def test_a_store_that_evicts_is_refused(daemon, own_store):
    """Exit code 2 and the command that mends it: such a store would lose requests."""
    with BlockingRedis.from_url(own_store.url) as redis:
        redis.config_set("maxmemory-policy", "allkeys-lru")
    one = daemon("-e", "http://127.0.0.1:9", "--workers", "1", redis=own_store.url)
    assert one.wait() == 2
    assert "CONFIG SET maxmemory-policy noeviction" in one.log


def test_a_store_that_wants_a_password_ends_the_daemon(daemon, own_store):
    """Exit code 3: a person has to give the password."""
    with BlockingRedis.from_url(own_store.url) as redis:
        redis.config_set("requirepass", "hunter2")
    one = daemon("-e", "http://127.0.0.1:9", "--workers", "1", redis=own_store.url)
    assert one.wait() == 3
    assert "give user and password in the URL" in one.log


def test_a_concurrency_that_cannot_fit_is_refused_before_anything_starts(daemon):
    """Exit code 2, naming the limit: better than "connection error" in the middle of a job."""
    one = daemon("-e", "http://127.0.0.1:9", "--concurrency", "500", redis="unix:///nowhere", open_files=400)
    assert one.wait() == 2
    assert "--concurrency 272 or less" in one.log
    assert "started" not in one.log


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((), "no endpoint is given"),
        (("-e", "localhost:8000"), "starts with http://"),
        (("--workers", "0", "-e", "http://h"), "--workers"),
        (("--no-such-option",), "No such option"),
        (("--config", "/no/such.toml"), "cannot read the configuration /no/such.toml"),
    ],
)
def test_a_wrong_setting_is_exit_code_2_and_a_sentence(daemon, options, says):
    """No traceback, nothing started."""
    one = daemon(*options)
    assert one.wait() == 2
    assert says in one.log
    assert "Traceback" not in one.log


async def test_the_embedded_store_is_opened_revived_and_closed(daemon, standin, tmp_path):
    """Without --redis the daemon brings its own store, starts it again when it is killed, and stops it in the end."""
    one = daemon("-e", standin.url, "--workers", "1", "--state-dir", str(tmp_path / "state"))
    one.says("control connected to the store")
    socket = next((tmp_path / "state").rglob("socket")).read_text()
    async with Redis(unix_socket_path=socket) as redis:
        await registered(redis)
        server = (await redis.info("server"))["process_id"]
    os.kill(server, signal.SIGKILL)
    one.says("control the store is back")
    async with Redis(unix_socket_path=socket) as redis:
        queue = await sealed_job(redis, [chat(i) for i in range(5)])
        await ended(queue)
        server = (await redis.info("server"))["process_id"]
    assert one.stop() == 0
    wait_until_sync(lambda: not Path(f"/proc/{server}").exists(), description="the embedded store has stopped")
