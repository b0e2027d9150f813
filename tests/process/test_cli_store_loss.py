"""A store of one's own that keeps no log: what a restart of it costs a run."""

from __future__ import annotations

from redis import Redis as SyncRedis
from tests.support.cli import write_requests
from tests.support.desk import Desk, desk, half_done, shared_standin, standin
from tests.support.standin import StandinProcess
from tests.support.store import StoreProcess
from tests.support.wait import wait_until_sync

__all__ = ["desk", "shared_standin", "standin"]


def test_a_store_that_lost_everything_costs_only_what_was_not_collected(
    desk: Desk, standin: StandinProcess, own_store: StoreProcess
):
    """The run says that its job is gone; the same command sends again what is in neither OUT nor OUT.gm."""
    write_requests(desk.input, 300)
    standin.control(latency="0.2")
    with desk.start("--redis", own_store.url, "--concurrency", 30) as running:
        wait_until_sync(half_done(desk), description="some results are durable")
        with SyncRedis.from_url(own_store.url) as client:
            client.flushall()
        assert running.wait() == 3
    assert "is no longer in the store" in running.stderr
    kept = len(desk.lines)
    assert 0 < kept < 300
    standin.control(latency="0")
    wait_until_sync(lambda: standin.stats["in_flight"] == 0, description="the server is left alone")
    sent = standin.stats["requests"]
    done = desk.run("--redis", own_store.url)
    assert done.returncode == 0, done.stderr
    desk.assert_complete(300)
    assert standin.stats["requests"] - sent <= 300 - kept
