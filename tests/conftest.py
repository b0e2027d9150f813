"""Fixtures that every tier shares: a real store, a client of it, and nothing in memory in its place."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from redis.asyncio import Redis

from gristmill.queue.store import connect
from tests.support.leaks import leaks
from tests.support.store import StoreProcess


@pytest.fixture(scope="session")
def shared_store() -> Iterator[StoreProcess]:
    """One store for all tests that do not hurt it; take `redis` for a clean view of it."""
    store = StoreProcess().start()
    yield store
    store.close()


@pytest.fixture
def own_store() -> Iterator[StoreProcess]:
    """A store that the test may kill, restart or fill."""
    store = StoreProcess().start()
    yield store
    store.close()


@pytest.fixture
async def redis(shared_store: StoreProcess) -> AsyncIterator[Redis]:
    """A client of the shared store, as the product makes it; the store is empty at the start of the test.

    At its end every key that is left must have an owner.
    """
    client = connect(shared_store.url)
    await client.flushall()
    yield client
    left = await leaks(client)
    await client.aclose()
    assert left == [], "keys that nobody would ever clean up"
