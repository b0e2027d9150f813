"""Requests that kill their workers: found by halving with real processes, and nobody else pays for it."""

from __future__ import annotations

import math

import pytest
from redis.asyncio import Redis
from tests.process.daemons import Daemon
from tests.process.poisoned import MARKER
from tests.support.invariants import check_invariants
from tests.support.jobs import chat, results, sealed_job
from tests.support.standin import StandinProcess
from tests.support.store import StoreProcess
from tests.support.wait import wait_until

from gristmill.contract.failure import FailureClass
from gristmill.contract.lifecycle import JobState

SLOTS = 16


@pytest.mark.parametrize(("workers", "deadly"), [(1, {57}), (2, {11, 140})], ids=["one of one", "two of two"])
async def test_a_request_that_kills_its_worker_is_found_and_nobody_else_blamed(
    redis: Redis, shared_store: StoreProcess, tmp_path, workers: int, deadly: set[int]
):
    """At most log2(slots) workers die for each, it alone is `poison`, and all others are answered."""
    requests = [chat(i, MARKER.decode() if i in deadly else "") for i in range(200)]
    queue = await sealed_job(redis, requests, first_alone=0)
    with StandinProcess("--latency", "0.02") as standin:
        options = ("-e", standin.url, "--workers", str(workers), "--concurrency", str(SLOTS), "--no-metrics")
        daemon = Daemon(tmp_path, *options, redis=shared_store.url, module="tests.process.poisoned")
        try:

            async def complete() -> bool:
                return (await queue.snapshot()).state is JobState.COMPLETE

            await wait_until(complete, description=f"the job completes: {daemon.log[-2000:]}", timeout_s=60)
            assert daemon.stop() == 0
        finally:
            daemon.close()
    records = await results(queue)
    assert {i for i, r in records.items() if not r.ok} == deadly
    assert {records[i].cls for i in deadly} == {FailureClass.POISON}
    deaths = daemon.log.count("crashed (SIGKILL)")
    assert 2 <= deaths <= len(deadly) * math.log2(SLOTS), daemon.log
    await check_invariants(redis, queue)
