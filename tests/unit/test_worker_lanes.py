"""The slots of a worker: how many run, what waits, and how much is claimed ahead."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import cast

from tests.support.jobs import chat
from tests.support.wait import wait_until

from gristmill.queue.replies import Claimed
from gristmilld.worker.lanes import Lanes, Work
from gristmilld.worker.session import Session


class Runs:
    """Requests that run until the test lets them end."""

    def __init__(self) -> None:
        self.running: deque[tuple[int, asyncio.Event]] = deque()

    async def __call__(self, work: Work) -> None:
        end = asyncio.Event()
        self.running.append((work.claimed.index, end))
        await end.wait()

    def end_first(self) -> None:
        self.running.popleft()[1].set()


def works(*indices: int, session: str = "") -> list[Work]:
    return [Work(cast("Session", session), Claimed(i, 0, 1), chat(i)) for i in indices]


async def test_no_more_run_than_there_are_slots_and_the_next_follows_at_once() -> None:
    """What waits takes a freed slot in the order in which it came."""
    runs = Runs()
    lanes = Lanes(2, runs)
    lanes.add(works(0, 1, 2, 3))
    await wait_until(lambda: len(runs.running) == 2, description="two run")
    assert (lanes.free, lanes.in_flight, lanes.starved) == (0, 2, False)
    runs.end_first()
    await wait_until(lambda: [i for i, _ in runs.running] == [1, 2], description="the third has begun")
    assert lanes.in_flight == 2
    while runs.running:
        runs.end_first()
        await asyncio.sleep(0)  # one step, so that the next can begin
        await asyncio.sleep(0)
    await lanes.wait(1)
    assert (lanes.free, lanes.in_flight, lanes.starved, lanes.text_bytes) == (2, 0, True, 0)


async def test_slow_requests_are_not_claimed_ahead() -> None:
    """While nothing ends there is room for the free slots alone."""
    lanes = Lanes(4, Runs())
    assert lanes.room(0.0) == 4
    lanes.add(works(0))
    assert lanes.room(1.0) == 3
    lanes.add(works(1, 2, 3))
    assert lanes.room(2.0) == 0


async def test_quick_requests_are_claimed_ahead_but_never_more_than_twice_the_slots() -> None:
    """As many as end within some tens of milliseconds."""
    runs = Runs()
    lanes = Lanes(100, runs)
    lanes.room(0.0)
    for i in range(50):
        lanes.add(works(i))
        await asyncio.sleep(0)  # let it begin
        runs.end_first()
        await lanes.wait(1)
    assert lanes.room(0.5) == 100 + 4
    for i in range(5000):
        lanes.add(works(i))
        await asyncio.sleep(0)  # let it begin
        runs.end_first()
    await lanes.wait(1)
    assert lanes.room(0.6) == 100 + 200


async def test_what_has_not_begun_can_be_taken_back() -> None:
    """A worker that leaves returns it to the queue; what runs goes on."""
    runs = Runs()
    lanes = Lanes(1, runs)
    lanes.add(works(0, 1, 2))
    await wait_until(lambda: len(runs.running) == 1, description="one runs")
    assert [w.claimed.index for w in lanes.take_back()] == [1, 2]
    assert lanes.text_bytes == chat(0).text_bytes
    assert await lanes.cancel() == 1
    assert lanes.in_flight == 0


async def test_what_runs_of_one_job_can_be_abandoned() -> None:
    """Its calls end, those of others go on, and the slots take what waits; also one that a lane took up later."""
    runs = Runs()

    async def run(work: Work) -> None:
        with suppress(asyncio.CancelledError):  # as the mill does: it becomes an outcome
            await runs(work)

    lanes = Lanes(2, run)
    one, other = "one", "other"
    lanes.add([*works(0, session=one), *works(1, session=other), *works(2, session=other), *works(3, session=one)])
    await wait_until(lambda: len(runs.running) == 2, description="two run")
    runs.end_first()
    await wait_until(lambda: [i for i, _ in runs.running] == [1, 2], description="the first lane runs the third")
    assert lanes.abandon(cast("Session", one)) == 0
    assert lanes.abandon(cast("Session", other)) == 2
    await wait_until(lambda: [i for i, _ in runs.running][2:] == [3], description="a freed lane runs the last")
    await wait_until(lambda: lanes.free == 1, description="the other one is free")
    runs.running[2][1].set()
    await lanes.wait(1)
    assert (lanes.free, lanes.text_bytes) == (2, 0)
