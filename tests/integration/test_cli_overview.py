"""One look at a store: what is shown, in which order, and what it costs the store."""

from __future__ import annotations

from redis.asyncio import Redis
from tests.support.queues import claim, collect_all, fed_job, finish, make_job

from gristmill.cli import _overview
from gristmill.cli._overview import Lookout
from gristmill.contract.lifecycle import JobState
from gristmill.queue import board, registry


async def scripts_run(redis: Redis) -> int:
    """How many scripts the store has run."""
    stats = await redis.info("commandstats")
    return sum(int(stats.get(f"cmdstat_{name}", {}).get("calls", 0)) for name in ("evalsha", "eval"))


async def test_what_is_worked_on_comes_first(redis: Redis):
    """Then the newest; no more than asked for, with the count of all."""
    low, high = await fed_job(redis, 3), await fed_job(redis, 3)
    await registry.mark_runnable(redis, high.job, 9)
    ended = [await fed_job(redis, 2) for _ in range(3)]
    for queue in ended:
        await finish(queue, "w.1", (await claim(queue, "w.1")).claimed)
        await registry.unmark_runnable(redis, queue.job)
    seen = await Lookout(redis).look(4)
    newest_ended = sorted((q.job for q in ended), reverse=True)[:2]
    assert [one.snapshot.job for one in seen.jobs] == [high.job, low.job, *newest_ended]
    assert seen.total == 5
    assert seen.used_bytes > 0


async def test_a_look_costs_a_script_for_each_job_that_is_shown(redis: Redis):
    """However many jobs there are; those that have ended are not asked about again soon."""
    jobs = [await fed_job(redis, 1) for _ in range(12)]
    lookout = Lookout(redis)
    before = await scripts_run(redis)
    await lookout.look(5)
    assert await scripts_run(redis) - before == 5
    for queue in jobs:
        await finish(queue, "w.1", (await claim(queue, "w.1")).claimed)
        await collect_all(queue)
    await lookout.look(5)
    before = await scripts_run(redis)
    seen = await lookout.look(5)
    assert await scripts_run(redis) == before
    assert {one.snapshot.state for one in seen.jobs} == {JobState.COMPLETE}


async def test_a_job_that_is_removed_is_shown_no_more(redis: Redis):
    """Also between two looks, and a row without a job is left out."""
    kept, gone = await make_job(redis), await make_job(redis)
    await registry.announce_job(redis, "not-made-yet")
    lookout = Lookout(redis)
    assert len((await lookout.look(9)).jobs) == 2
    await gone.remove()
    assert [one.snapshot.job for one in (await lookout.look(9)).jobs] == [kept.job]


async def test_troubles_are_gathered_by_endpoint(redis: Redis):
    """Several workers that say the same are one line, of each pool that has a job."""
    await make_job(redis)
    now_ms = await registry.now_ms(redis)
    for worker, wait_ms in (("a.0", 4_000), ("a.1", 9_000)):
        await board.post(redis, "default", worker, {"http://h/v1": ("cooling", now_ms + wait_ms)}, now_ms)
    await board.post(redis, "elsewhere", "b.0", {"http://other/v1": ("down", 0)}, now_ms)
    (trouble,) = (await Lookout(redis).look(9)).troubles
    assert (trouble.endpoint, trouble.state, trouble.workers) == ("http://h/v1", "cooling", 2)
    assert 8 < trouble.wait_s <= 9


async def test_daemons_are_not_asked_for_at_each_look(redis: Redis, monkeypatch):
    """They change seldom; a new one shows within a few seconds."""
    calls = []

    async def counted(*args: object) -> list[registry.DaemonInfo]:
        calls.append(args)
        return []

    monkeypatch.setattr(_overview.registry, "live_daemons", counted)
    lookout = Lookout(redis)
    for _ in range(3):
        await lookout.look(1)
    assert len(calls) == 1
