"""The way to an endpoint breaks at the worst moments, made by a proxy: every request is answered all the same."""

from __future__ import annotations

from typing import get_args

import pytest
from redis.asyncio import Redis
from tests.support.chaos_input import Sheet
from tests.support.invariants import check_invariants
from tests.support.jobs import chat, results, sealed_job, worker
from tests.support.proxy import Proxy, Snag, to_url
from tests.support.standin import Standin
from tests.support.wait import wait_until

from gristmill.contract.lifecycle import JobState

LOST_BEFORE = {"reset", "cut_request"}
"""Snags that keep the request from the endpoint; the others lose its answer."""


@pytest.mark.parametrize("snag", get_args(Snag))
async def test_a_lost_answer_is_asked_for_again(redis: Redis, snag: Snag):
    """Half-closed, reset, cut: the request goes out once more, and only that one; each row gets its own answer."""
    sheet = Sheet("s", 60)
    queue = await sealed_job(redis, [chat(row, sheet.text(row)) for row in range(sheet.rows)], first_alone=0)

    async def complete() -> bool:
        return (await queue.snapshot()).state is JobState.COMPLETE

    async with Standin(latency=0.02) as standin, Proxy(to_url(standin.url)) as way:
        for _ in range(3):
            way.arm(snag, b"POST ")
        async with worker(redis, f"http://127.0.0.1:{way.port}/v1", slots=16):
            await wait_until(complete, description="every request is answered")
        assert way.hurt[snag] == 3
        assert standin.stats["requests"] == sheet.rows + (0 if snag in LOST_BEFORE else 3)
    found = await results(queue)
    assert [found[row].cls for row in range(sheet.rows)] == [None] * sheet.rows
    for row in range(sheet.rows):
        body = found[row].detail.body
        assert body is not None
        assert sheet.digest(row).encode() in body
    await check_invariants(redis, queue)
