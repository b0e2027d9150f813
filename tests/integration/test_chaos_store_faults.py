"""The way to the store breaks at the worst moments, made by a proxy: nothing is lost, nothing is counted twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import uvloop
from redis.asyncio import Redis
from tests.support.proxy import Proxy, to_url
from tests.support.store import StoreProcess

from gristmill.queue.store import connect


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
