"""The script `ctl` and the table in `gristmill.contract.lifecycle` are one table."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis
from tests.support.queues import make_job

from gristmill.contract import lifecycle
from gristmill.contract.failure import CODES, FailureClass
from gristmill.contract.lifecycle import Event, JobState, next_state
from gristmill.queue import loader


@pytest.mark.parametrize("event", Event)
@pytest.mark.parametrize("state", JobState)
async def test_every_state_and_event_goes_the_same_way(redis: Redis, state: JobState, event: Event):
    """Each pair is walked by the script as the table says; a pair that is not in the table changes nothing.

    The job is put into a state in which no other rule ends it: requests are in flight, and not all are done, but for
    the two events whose condition is just that.
    """
    queue = await make_job(redis)
    done = event is Event.COMPLETE
    in_flight = 0 if event is Event.SETTLE else 1
    await redis.hset(
        queue.keys.meta, mapping={"state": state.value, "in_flight": in_flight, "closed": "1", "n": 0 if done else 5}
    )
    before = await redis.hgetall(queue.keys.meta)
    names = [queue.keys.meta, queue.keys.done]
    reply = await loader.call(redis, "ctl", names, [queue.epoch, event.value, "user", "why", 0])
    expected = next_state(state, event)
    if expected is None:
        assert reply[:2] == [b"UNCHANGED", state.value.encode()]
        assert await redis.hgetall(queue.keys.meta) == before
    else:
        assert reply[:2] == [b"OK", expected.value.encode()]
        assert await redis.hget(queue.keys.meta, "state") == expected.value.encode()


async def test_settle_waits_for_what_is_in_flight_unless_forced(redis: Redis):
    """A job being cancelled ends when nothing is in flight, or when its grace is over."""
    queue = await make_job(redis)
    await redis.hset(queue.keys.meta, mapping={"state": "cancelling", "in_flight": 2})
    assert (await queue.settle()).status == "UNCHANGED"
    assert (await queue.settle(force=True)).state == "cancelled"


async def test_complete_is_not_believed_but_looked_up(redis: Redis):
    """The event `complete` ends only a job of which everything is done."""
    queue = await make_job(redis)
    names = [queue.keys.meta, queue.keys.done]
    reply = await loader.call(redis, "ctl", names, [queue.epoch, "complete", "", "", 0])
    assert reply[:2] == [b"UNCHANGED", b"running"]


def test_every_terminal_state_only_leads_to_deleting():
    """No request of an ended job is ever sent again: nothing leads out of it but its removal."""
    for state in lifecycle.TERMINAL:
        assert {e for e in Event if next_state(state, e)} == {Event.DELETE}


def test_the_commit_script_knows_the_codes_of_bad_input():
    """Which classes prove nothing about the setup is written in Lua by number."""
    text = loader.scripts()["commit"].text
    image, line = CODES[FailureClass.BAD_IMAGE], CODES[FailureClass.BAD_INPUT]
    assert f"local BAD_IMAGE, BAD_INPUT = {image}, {line}\n" in text
