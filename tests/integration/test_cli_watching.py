"""The watcher over a real queue: what it shows when nothing moves, and when it returns."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from typing import Any

import pytest
from redis.asyncio import Redis
from tests.support.store import StoreProcess
from tests.support.wait import wait_until

from gristmill.cli import _children, _watching
from gristmill.cli._early import EarlyFeeder, early_feeder
from gristmill.cli._feeding import MAX_DEATHS, FeederKeeper
from gristmill.cli._progress import Phase, View
from gristmill.cli._session import Store
from gristmill.cli._watching import Watcher, needs_somebody
from gristmill.contract.lifecycle import PauseReason
from gristmill.contract.manifest import Manifest
from gristmill.holders import holder
from gristmill.queue.connection import StoreDiskError
from gristmill.queue.leasequeue import LeaseQueue
from gristmill.queue.replies import Role
from gristmill.queue.store import connect


class Views:
    """Stands in for the terminal: keeps what was shown and said."""

    def __init__(self) -> None:
        self.seen: list[View] = []
        self.said: list[str] = []

    def show(self, view: View) -> None:
        self.seen.append(view)

    def say(self, text: str) -> None:
        self.said.append(text)


async def job(redis: Redis, name: str = "j1") -> LeaseQueue:
    return await LeaseQueue.create(redis, Manifest(job=name, epoch="e", name="test", created_at_ms=1))


def watcher(queue: LeaseQueue, redis: Redis, views: Views, embedded: Any = None, **more: Any) -> Watcher:
    store = Store(url="", redis=redis, embedded=embedded)
    return Watcher(queue, store, views, **more)  # type: ignore[arg-type]  # the double has what is used of Talk


async def test_dead_endpoint_is_named(redis: Redis, monkeypatch: pytest.MonkeyPatch):
    """When nothing finishes, the endpoints are asked, and the display names the one that is down."""
    monkeypatch.setattr(_watching, "STALL_S", 0.0)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{s.getsockname()[1]}/v1"
    views = Views()
    watching = watcher(await job(redis), redis, views, urls=[url])

    async def named() -> bool:
        await watching.look()
        return views.seen[-1].waiting_for.startswith(f"{url} refused the connection")

    await wait_until(named, description="the display names the endpoint")
    assert views.seen[-1].phase == Phase.WAITING


async def test_pause_for_a_person_ends_the_watch(redis: Redis):
    """A user's own pause is waited out; one that needs a person ends the command, where it asks for that."""
    queue, views = await job(redis), Views()
    watching = asyncio.create_task(watcher(queue, redis, views, ends_paused=needs_somebody).run())
    await queue.pause(PauseReason.USER, "")
    await wait_until(
        lambda: bool(views.seen) and views.seen[-1].phase == Phase.PAUSED, description="the pause is shown"
    )
    assert not watching.done()
    await queue.pause(PauseReason.CONFIG, "no key")
    async with asyncio.timeout(20):
        assert (await watching).detail == "no key"


async def test_a_dead_feeder_is_named_at_once(redis: Redis):
    """Its lease lives on, but its process, one of this machine, does not: nothing is waited for in vain."""
    queue, views = await job(redis), Views()
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "")
    await process.wait()
    dead = holder("producer submit").rpartition(" ")[0] + f" {process.pid}"
    assert (await queue.take_lease(Role.FEEDER, "t", dead, 60_000)).granted
    await watcher(queue, redis, views).look()
    assert views.seen[-1].waiting_for == "a feeder (lost at line 0)"
    assert (await queue.take_lease(Role.FEEDER, "t", holder("producer submit"), 60_000, force=True)).granted
    await watcher(queue, redis, views).look()
    assert "lost" not in views.seen[-1].waiting_for


async def test_store_that_is_away_is_named_and_waited_for(own_store: StoreProcess):
    """While the store does not answer the display says so; afterwards all goes on."""
    redis, views = connect(own_store.url), Views()
    try:
        queue = await job(redis)
        watching = watcher(queue, redis, views)
        await watching.look()
        own_store.kill()
        assert await watching.look() is None
        assert views.seen[-1].waiting_for.startswith("the store")
        own_store.start()
        await wait_until(watching.look, description="the store answers again")  # type: ignore[arg-type]  # truthy
        assert views.seen[-1].waiting_for == "the workers" or views.seen[-1].phase == Phase.FEEDING
    finally:
        await redis.aclose()


def feeder_of(script: str, starts: list[int]) -> Any:
    """A stand-in for `_children.launch_feeder` that runs a line of Python."""

    async def start(_keep: tuple[int, ...]) -> Process:
        starts.append(1)
        return await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdin=PIPE, stdout=PIPE, stderr=PIPE)

    return start


DIE = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"


async def test_feeder_that_dies_without_progress_is_given_up(monkeypatch: pytest.MonkeyPatch):
    """After several deaths at the same line the feeder is not started again, and the line is named."""
    starts: list[int] = []
    monkeypatch.setattr(_children, "launch_feeder", feeder_of(DIE, starts))
    said: list[str] = []

    async def line() -> int:
        return 41

    end = await FeederKeeper(b"{}", line, said.append).run()
    assert (end.code, len(starts)) == (1, MAX_DEATHS)
    assert "line 41" in end.message
    assert said == ["feeder lost at line 41 (signal 9); resuming"] * (MAX_DEATHS - 1)


async def test_feeder_that_makes_progress_is_never_given_up(monkeypatch: pytest.MonkeyPatch):
    """Each line of progress starts the count of deaths anew."""
    starts: list[int] = []
    monkeypatch.setattr(_children, "launch_feeder", feeder_of(DIE, starts))

    async def line() -> int:
        if len(starts) == 3 * MAX_DEATHS:
            monkeypatch.setattr(_children, "launch_feeder", feeder_of("print('{}')", starts))
        return len(starts)

    assert (await FeederKeeper(b"{}", line, lambda _: None).run()).code == 0
    assert len(starts) == 3 * MAX_DEATHS + 1


async def test_refusal_of_the_input_ends_feeding(monkeypatch: pytest.MonkeyPatch):
    """Exit 2 of the feeder is final; its sentence is passed on once."""
    script = "import sys; sys.stderr.write('line 3 is bad\\n'); sys.exit(2)"
    monkeypatch.setattr(_children, "launch_feeder", feeder_of(script, []))
    said: list[str] = []

    async def line() -> int:
        return 0

    end = await FeederKeeper(b"{}", line, said.append).run()
    assert (end.code, end.message, end.told, said) == (2, "line 3 is bad", True, ["line 3 is bad"])


async def test_a_feeder_that_runs_already_feeds_first(monkeypatch: pytest.MonkeyPatch):
    """It gets the spec like any other; when it dies, the next one is started."""
    starts: list[int] = []
    monkeypatch.setattr(_children, "launch_feeder", feeder_of("print('{}')", starts))
    script = "import os, sys; sys.stderr.write(sys.stdin.readline()); sys.stderr.flush(); os.abort()"
    early = EarlyFeeder(await feeder_of(script, [])(()))
    said: list[str] = []

    async def line() -> int:
        return 0

    assert (await FeederKeeper(b"the spec", line, said.append, early=early).run()).code == 0
    assert said == ["the spec", "feeder lost at line 0 (signal 6); resuming"]
    assert (starts, early.take()) == ([1], None)


async def test_a_feeder_that_died_before_it_was_needed_is_replaced(monkeypatch: pytest.MonkeyPatch):
    """Its spec has nobody to go to, which is no error."""
    starts: list[int] = []
    monkeypatch.setattr(_children, "launch_feeder", feeder_of("print('{}')", starts))
    early = await feeder_of(DIE, [])(())
    await early.wait()

    async def line() -> int:
        return 0

    assert (await FeederKeeper(b"{}", line, lambda _: None, early=EarlyFeeder(early)).run()).code == 0
    assert starts == [1]


async def test_an_early_feeder_that_nobody_takes_is_ended(monkeypatch: pytest.MonkeyPatch):
    """However the command ends; one that was taken is left alone."""
    monkeypatch.setattr(_children, "launch_feeder", lambda: feeder_of("input()", [])(()))
    left: list[Process | None] = []

    async def fail() -> None:
        async with early_feeder() as early:
            left.append(early._process)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert left[0] is not None
    assert left[0].returncode == -signal.SIGKILL
    async with early_feeder() as early:
        taken = early.take()
    assert taken is not None
    assert taken.returncode is None
    taken.kill()
    await taken.wait()


async def test_a_full_disk_of_the_store_is_named(redis: Redis, monkeypatch: pytest.MonkeyPatch):
    """Somebody has to make room, so it must not look like an outage that ends by itself."""
    views, queue = Views(), await job(redis)
    watching = watcher(queue, redis, views)
    await watching.look()

    async def refused(_: LeaseQueue) -> None:
        raise StoreDiskError("Errors writing to the AOF file: No space left on device")

    monkeypatch.setattr(LeaseQueue, "snapshot", refused)
    assert await watching.look() is None
    assert views.seen[-1].waiting_for.startswith("room on the store's disk")
