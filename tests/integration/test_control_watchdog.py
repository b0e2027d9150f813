"""The word about jobs that stand still: in the daemon's log, in its metrics, and what starts the clock anew."""

from __future__ import annotations

import logging

import pytest
from redis.asyncio import Redis
from tests.support.clock import ManualClock
from tests.support.queues import claim, fed_job, finish
from tests.support.wait import wait_until

from gristmill.contract.lifecycle import PauseReason
from gristmill.queue import LeaseQueue, board, registry
from gristmill.queue.registry import DaemonInfo
from gristmill.queue.waiting import Reason, idle_s
from gristmilld.control.janitor import Janitor
from gristmilld.control.reaper import Reaper
from gristmilld.control.storewatch import StoreWatch
from gristmilld.control.watchdog import Watchdog
from gristmilld.server.gauges import of_store
from gristmilld.server.look import StoreLook

AFTER_S = 60.0


async def make_idle(redis: Redis, queue: LeaseQueue, idle_s: float) -> None:
    """As if so much time had passed since the last finished request."""
    at_ms = await registry.now_ms(redis) - int(idle_s * 1000)
    await redis.hset(queue.keys.meta, mapping={"created_at": at_ms, "progress_at": at_ms})


@pytest.fixture
async def daemon(redis: Redis) -> None:
    info = DaemonInfo(
        daemon_id="d1", host="here", pid=1, version="0", pool="default", workers=1, slots=4, started_at_ms=1
    )
    await registry.register_daemon(redis, info, 60)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the watchdog has said since the last call."""
    lines = [r.getMessage() for r in caplog.records if r.name == "gristmilld.control.watchdog"]
    caplog.clear()
    return lines


@pytest.mark.usefixtures("daemon")
async def test_each_change_is_said_once(redis: Redis, caplog: pytest.LogCaptureFixture):
    """Round after round nothing is repeated; another reason and the end of the standstill are said."""
    caplog.set_level(logging.INFO)
    clock = ManualClock()
    janitor = Janitor(redis, Reaper(redis, clock), StoreWatch(clock), 30.0, clock, Watchdog(redis, "default", AFTER_S))
    queue = await fed_job(redis, 10)
    claimed = (await claim(queue, "d1.0.0.0", 3)).claimed
    await janitor.round()
    assert said(caplog) == [], "it has only begun"
    await make_idle(redis, queue, AFTER_S + 1)
    for _ in range(3):
        await janitor.round()
    [line] = said(caplog)
    assert line.startswith("nothing has finished for 61 s: waiting for answers to 3 requests; the oldest, index 0,")
    assert line.endswith("with worker d1.0.0.0 on here")
    now_ms = await registry.now_ms(redis)
    await board.post(redis, "default", "d1.0.0", {"http://a/v1": ("down", now_ms)}, now_ms)
    for _ in range(2):
        await janitor.round()
    [line] = said(caplog)
    assert line.endswith("waiting for http://a/v1, which can't be reached")
    await queue.pause(PauseReason.CONFIG, "no key")
    await janitor.round()
    assert said(caplog) == [], "whoever paused it has said so"
    await queue.resume()
    await janitor.round()
    assert said(caplog) == ["a job goes on"]
    await finish(queue, "d1.0.0.0", claimed)
    await janitor.round()
    assert said(caplog) == []


async def test_jobs_of_other_pools_are_left_to_their_daemons(redis: Redis, caplog: pytest.LogCaptureFixture):
    """Each is said by one kind of daemon only."""
    queue = await fed_job(redis, 10, pool="other")
    await make_idle(redis, queue, 1000)
    await Watchdog(redis, "default", AFTER_S).look(queue, await queue.snapshot())
    assert said(caplog) == []
    await Watchdog(redis, "other", AFTER_S).look(queue, await queue.snapshot())
    [line] = said(caplog)
    assert "waiting for a daemon: none is connected" in line


async def test_answers_and_resumes_count_as_progress_and_returns_do_not(redis: Redis):
    """By the store's clock; so all who look see the same idleness."""
    queue = await fed_job(redis, 10)
    claimed = (await claim(queue, "w", 4)).claimed
    await make_idle(redis, queue, 500)
    await queue.reap("w", force=True, crashed=False)
    await queue.pause(PauseReason.USER, "")
    assert idle_s(await queue.snapshot()) >= 500
    await queue.resume()
    assert idle_s(await queue.snapshot()) < 60
    await make_idle(redis, queue, 500)
    await finish(queue, "w", claimed[:1])
    assert idle_s(await queue.snapshot()) < 60
    await make_idle(redis, queue, 500)
    await finish(queue, "w", claimed[:1])  # again: it changes nothing
    assert idle_s(await queue.snapshot()) >= 500


@pytest.mark.usefixtures("daemon")
async def test_the_metric_names_the_reason_while_it_lasts(redis: Redis):
    """One series for each job that stands still; none for one that works or has ended."""
    stalled, ended = await fed_job(redis, 10), await fed_job(redis, 2)
    await fed_job(redis, 10)
    for queue in (stalled, ended):
        await make_idle(redis, queue, 1000)
    await ended.cancel()
    look = StoreLook(redis, stalled_after_s=AFTER_S)

    async def series() -> dict[tuple[str, str], float]:
        view = await look.once()
        [family] = [f for f in of_store(view) if f.name == "gristmill_job_stalled"] or [None]
        samples = family.samples if family else []
        return {(s.labels["job_id"], s.labels["reason"]): s.value for s in samples}

    assert await series() == {(stalled.job, Reason.WORKERS.value): 1}
    await finish(stalled, "w", (await claim(stalled, "w", 1)).claimed)

    async def gone() -> bool:
        return await series() == {}

    await wait_until(gone, description="the series is gone")
