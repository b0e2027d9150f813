"""Servers that answer, or do not, and are no store for a queue."""

from __future__ import annotations

import socket

import pytest
from tests.support.ha import Server, free_port

from gristmill.queue import store
from gristmill.queue.errors import StoreError
from gristmill.queue.store import check_store, connect, faults


async def test_a_server_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch):
    """As a TLS handshake with a plain server: not after each connection's time-out and every repetition of it."""
    monkeypatch.setattr(store, "CHECK_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as mute:  # the kernel accepts, and nobody reads
        redis = connect(f"redis://127.0.0.1:{mute.getsockname()[1]}")
        with pytest.raises(StoreError, match=r"does not answer within 0 s; is it running, and is the URL right"):
            await check_store(redis)
        await redis.aclose()


async def test_a_cluster_that_nobody_has_made_yet_is_told():
    """A node in cluster mode without slots is no store, whatever its URL says."""
    node = Server("--cluster-enabled", "yes", "--cluster-port", str(free_port())).start()
    redis = connect(f"redis+cluster://127.0.0.1:{node.port}")
    try:
        with pytest.raises(StoreError, match="no primary with slots; make it with redis-cli --cluster create"):
            await check_store(redis)
    finally:
        await redis.aclose()
        node.close()


def test_a_sentinel_is_not_taken_for_a_store():
    """The sentence has the form to write; it comes first, since a sentinel lacks the rest, too."""
    first, *_ = faults({"redis_version": "7.0.15", "redis_mode": "sentinel"}).values()
    assert first.startswith("the store is a sentinel: write its URL as redis+sentinel://")
