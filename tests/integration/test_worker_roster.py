"""How soon an idle worker sees a new job, and the first request of a job that it waits for."""

from __future__ import annotations

from redis.asyncio import Redis
from tests.support.jobs import chat, sealed_job

from gristmill.contract.lifecycle import JobState
from gristmill.contract.manifest import Manifest
from gristmill.queue import LeaseQueue
from gristmilld.meter import WorkerMetrics
from gristmilld.worker.roster import IDLE_REFRESH_S, REFRESH_S, Roster
from gristmilld.worker.session import FIRST_PAUSE_S, Session

METER = WorkerMetrics()


class Ticks:
    """A clock that stands until it is set."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


async def test_a_job_that_has_ended_does_not_delay_the_next(redis: Redis) -> None:
    """While a job runs, others are looked for now and then; once it has ended, as often as with nothing to do."""
    clock = Ticks()

    def open_session(queue: LeaseQueue, manifest: Manifest) -> Session:
        return Session(queue, manifest, "d.0.0", 30_000, clock, METER)

    roster = Roster(redis, "default", open_session, clock)
    first = await sealed_job(redis, [chat(0)])
    await roster.refresh()
    assert list(roster.sessions) == [first.job]
    clock.now_s += IDLE_REFRESH_S + 0.001
    await roster.refresh()
    second = await sealed_job(redis, [chat(0)])
    clock.now_s += IDLE_REFRESH_S + 0.001
    await roster.refresh()
    assert list(roster.sessions) == [first.job]
    clock.now_s += REFRESH_S
    await roster.refresh()
    assert set(roster.sessions) == {first.job, second.job}
    for session in roster.sessions.values():
        session.state = JobState.COMPLETE  # as the reply to the last commit says
    clock.now_s += REFRESH_S
    await roster.refresh()
    third = await sealed_job(redis, [chat(0)])
    clock.now_s += IDLE_REFRESH_S + 0.001
    await roster.refresh()
    assert third.job in roster.sessions


async def test_what_comes_is_seen_after_a_fraction_of_the_wait(redis: Redis) -> None:
    """A job without anything to claim is asked again and again, less and less often, but never late by much more than a
    quarter of the time that it has been empty; one that had something is asked at once."""
    clock = Ticks()
    queue = await sealed_job(redis, [chat(0)])
    session = Session(queue, await queue.manifest(), "d.0.0", 30_000, clock, METER)
    begun_s = clock.now_s
    pauses = list[float]()
    while clock.now_s - begun_s < 2.0:
        session.claimed(clock.now_s, found=False, longest_s=0.2)
        pause_s = session.next_claim_s - clock.now_s
        assert pause_s <= FIRST_PAUSE_S + 0.26 * (clock.now_s - begun_s)
        pauses.append(pause_s)
        clock.now_s = session.next_claim_s
    assert abs(pauses[0] - FIRST_PAUSE_S) < 1e-9
    assert abs(pauses[-1] - 0.2) < 1e-9
    assert len(pauses) < 30
    session.claimed(clock.now_s, found=True, longest_s=0.2)
    assert session.next_claim_s == clock.now_s
