"""Living through an outage of the store, and reading notices."""

from __future__ import annotations

import asyncio
import logging
import os

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from tests.support.clock import ManualClock

from gristmilld.control import storewatch
from gristmilld.control.notices import Notice, NoticeStream
from gristmilld.control.storewatch import StoreWatch


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Waits between attempts are short."""
    monkeypatch.setattr(storewatch, "FIRST_WAIT_S", 0.001)
    monkeypatch.setattr(storewatch, "LONGEST_WAIT_S", 0.001)


class Store:
    """Fails with each of `troubles` once, then answers."""

    def __init__(self, *troubles: Exception) -> None:
        self.troubles = list(troubles)

    async def __call__(self) -> str:
        if self.troubles:
            raise self.troubles.pop(0)
        return "yes"


AWAY = RedisConnectionError("away")


async def test_a_call_is_repeated_until_the_store_answers(caplog):
    """Away, or refusing because its disk is full: both are waited for, and both are said once."""
    caplog.set_level(logging.INFO)
    watch = StoreWatch(ManualClock())
    assert await watch.insist(Store(AWAY, ResponseError("MISCONF disk"), OSError("reset"))) == "yes"
    said = [record.message for record in caplog.records]
    assert said == ["the store cannot be used (away); trying again until it can", "the store is back"]


async def test_what_is_not_the_stores_trouble_is_raised():
    """A fault of ours must not hide as an outage."""
    watch = StoreWatch(ManualClock())
    with pytest.raises(KeyError):
        await watch.insist(Store(KeyError("ours")))
    with pytest.raises(KeyError):
        await watch.attempt(Store(KeyError("ours")))


async def test_the_time_since_the_last_outage_is_known():
    """It is 0 during an outage and starts anew after it."""
    clock = ManualClock()
    watch = StoreWatch(clock)
    watch.up_since(100)
    assert watch.well_for_s == 100
    assert not await watch.attempt(Store(AWAY))
    clock.advance(50)
    assert watch.well_for_s == 0
    assert await watch.attempt(Store())
    clock.advance(7)
    assert watch.well_for_s == 7


async def test_our_own_store_is_started_again(caplog):
    """Each failed call tries; a start that fails is said, and the next call tries again."""
    starts = []

    def revive() -> None:
        starts.append(1)
        if len(starts) == 1:
            raise RuntimeError("no room")

    watch = StoreWatch(ManualClock(), revive)
    assert await watch.insist(Store(AWAY, AWAY)) == "yes"
    assert len(starts) == 2
    assert "the embedded store does not start again: no room" in caplog.text


async def test_notices_are_read_one_by_one_and_acknowledged_by_number():
    """Lines may come in pieces; the end of the stream ends the reading."""
    notices, supervisor = os.pipe()
    acks, child = os.pipe()
    stream = NoticeStream(notices, child)
    os.write(supervisor, b'{"number":1,"prefix":"d.0.0","crashed":true}\n{"number":2,"pre')
    seen = []
    async for notice in stream:
        seen.append(notice)
        stream.acknowledge(notice)
        if len(seen) == 1:
            os.write(supervisor, b'fix":"d.1.0","crashed":false}\n')
            os.close(supervisor)
    assert seen == [Notice(1, "d.0.0", crashed=True), Notice(2, "d.1.0", crashed=False)]
    assert os.read(acks, 100) == b"1\n2\n"
    os.close(acks)
    os.close(child)
    await asyncio.sleep(0)  # the loop closes the pipe's transport in its next turn
