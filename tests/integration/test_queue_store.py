"""The store under the queue: restarted, full, unfit, or gone for a while."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest
from redis.asyncio import Redis
from redis.exceptions import OutOfMemoryError, RedisError
from tests.support.invariants import check_invariants
from tests.support.queues import (
    COLLECTOR,
    FEEDER,
    TTL_MS,
    claim,
    collect_all,
    fed_job,
    feed,
    finish,
    frame,
    indices,
    make_job,
    record_of,
)
from tests.support.store import StoreProcess
from tests.support.wait import wait_until

from gristmill.queue import StoreError, StoreFullError, loader
from gristmill.queue.connection import sent_once
from gristmill.queue.replies import Finished, Returned, Run
from gristmill.queue.store import OUTAGES, check_store, connect


async def test_scripts_that_the_store_has_forgotten_are_given_again(redis: Redis):
    """After a restart or a failover the first call loads the script and is answered, in a pipeline too."""
    queue = await fed_job(redis, 10)
    await redis.script_flush()
    assert len((await claim(queue, "a", 2, ttl_ms=0)).claimed) == 2
    assert len((await claim(queue, "b", 2, ttl_ms=0)).claimed) == 2
    await redis.script_flush()
    assert await queue.reap_expired() == 2


async def test_an_error_of_one_call_in_a_pipeline_is_raised(redis: Redis):
    """It is not taken for a reply."""
    queue = await fed_job(redis, 10)
    await redis.set("wrong", "type")
    with pytest.raises(RedisError):
        await loader.call_each(redis, "renew", [(["wrong", queue.keys.workers, "x"], ["e", "t", 1])])


async def test_at_the_memory_limit_only_new_payload_is_refused(own_store: StoreProcess):
    """Everything that drains goes on: a refused renewal would expire live leases, a refused ack free nothing."""
    async with connect(own_store.url) as redis:
        queue = await fed_job(redis, 50, close=False)
        held = (await claim(queue, "w", 20)).claimed
        fields: dict[bytes | str, bytes] = {str(i): frame(i) for i in range(50, 60)}
        run = Run(run=5, first=50, count=10, bytes=await queue.stage(FEEDER, fields), fields=10, cursor=b"60")
        await redis.config_set("maxmemory", 1_000_000)
        with pytest.raises(OutOfMemoryError):
            await redis.set("x", "y")
        with pytest.raises(StoreFullError, match="memory limit"):
            await queue.stage("other", {"1": b"x"})
        assert (await queue.seal(FEEDER, run)).status == "FULL"
        assert (await queue.renew("w", TTL_MS)).status == "OK"
        assert len((await claim(queue, "w2", 5)).claimed) == 5
        assert (await finish(queue, "w", held[:15])).new == 15
        assert (await queue.commit("w", [], [Returned(held[15].index, held[15].claim, 0, 1)])).stale == 0
        assert (await queue.reap("w", force=True, crashed=True)).moved == 4
        assert len(await collect_all(queue)) == 15
        await redis.config_set("maxmemory", 0)
        assert (await queue.seal(FEEDER, run)).status == "OK"
        await check_invariants(redis, queue)


async def test_a_killed_store_comes_back_with_all_that_it_had_written(own_store: StoreProcess):
    """Every reply that was given before a fsync survives kill -9, and the clients go on by themselves."""
    own_store.close()
    store = StoreProcess(fsync="always").start()
    try:
        async with connect(store.url) as redis:
            queue = await fed_job(redis, 40)
            held = (await claim(queue, "w", 20)).claimed
            await finish(queue, "w", held[:10])
            store.kill()
            renewal = asyncio.create_task(queue.renew("w", TTL_MS))
            store.start()
            assert (await renewal).held == 10
            assert not queue.rolled_back
            await check_invariants(redis, queue)
            await finish(queue, "w", held[10:])
            await finish(queue, "w", (await claim(queue, "w")).claimed)
            assert sorted(await collect_all(queue)) == list(range(40))
    finally:
        store.close()


async def test_a_claim_is_not_sent_again_by_the_client(own_store: StoreProcess):
    """It fails at once, so that its caller looks at what the token holds; what may be repeated is, for a while."""
    async with connect(own_store.url) as redis:
        queue = await fed_job(redis, 10)
        own_store.kill()
        begun = time.monotonic()
        with pytest.raises(OUTAGES):
            await claim(queue, "w")
        once_s = time.monotonic() - begun
        with pytest.raises(OUTAGES):
            await queue.renew("w", TTL_MS)
        assert time.monotonic() - begun > 2 * once_s


async def test_a_lost_suffix_is_noticed_by_the_version_and_repaired_by_sending_again(own_store: StoreProcess):
    """A power cut takes the end of the log: the version goes backwards, the feeder rewinds, workers send again."""
    async with connect(own_store.url) as redis:
        queue = await make_job(redis)
        await feed(queue, 0, 0, 10)
        first = (await claim(queue, "w", 4)).claimed
        await redis.bgrewriteaof()
        await _log_rewritten(redis)
        log = max((own_store.dir / "appendonlydir").glob("*.incr.aof"), key=lambda p: p.stat().st_mtime_ns)
        kept_bytes = log.stat().st_size
        await feed(queue, 1, 10, 10)
        second = (await claim(queue, "w", 10)).claimed
        sent = [Finished(c.index, c.run, record_of(c.index)) for c in first + second]
        assert (await queue.commit("w", sent, [])).new == 14
        own_store.kill()
        with log.open("r+b") as file:
            file.truncate(kept_bytes)
        own_store.start()
        assert (await queue.renew("w", TTL_MS)).held == 4
        assert queue.rolled_back
        queue.rolled_back = False
        again = await queue.commit("w", sent, [])
        assert (again.new, again.ahead) == (10, 4)
        assert (await queue.close(2, 20)).status == "GAP"
        assert (await feed(queue, 1, 10, 10)).status == "OK"
        assert (await queue.close(2, 20)).status == "OK"
        rest = (await claim(queue, "w")).claimed
        assert indices(rest) == list(range(10, 20)), "done indices before the hand-out position are passed over"
        await finish(queue, "w", rest)
        assert sorted(await collect_all(queue, COLLECTOR)) == list(range(20))
        assert not queue.rolled_back


async def _log_rewritten(redis: Redis) -> None:
    for _ in range(500):
        info = await redis.info("persistence")
        if not info["aof_rewrite_in_progress"] and not info["aof_rewrite_scheduled"]:
            return
        await asyncio.sleep(0.01)  # the server's own background process
    raise AssertionError("the log was not rewritten within 5 s")


async def test_a_fit_store_says_what_it_is(own_store: StoreProcess):
    """Product, version and limits are there for `status` and for bug reports."""
    async with connect(own_store.url) as redis:
        info = await check_store(redis)
    assert info.product in ("valkey", "redis")
    assert info.appendonly
    assert info.max_memory_bytes == 0


@pytest.mark.parametrize(
    ("setting", "value", "sentence"),
    [
        ("maxmemory-policy", "allkeys-lru", "maxmemory-policy noeviction"),
        ("replicaof", "127.0.0.1 1", "read-only replica"),
    ],
)
async def test_an_unfit_store_is_refused_with_the_fix(own_store: StoreProcess, setting: str, value: str, sentence: str):
    """Before a job is lost to it."""
    async with connect(own_store.url) as redis:
        if setting == "replicaof":
            await redis.replicaof(*value.split())
        else:
            await redis.config_set(setting, value)
        with pytest.raises(StoreError, match=sentence):
            await check_store(redis)


async def test_a_store_that_cannot_be_reached_says_so(own_store: StoreProcess):
    """In one sentence, not in a stack of foreign errors."""
    own_store.kill()
    async with connect(own_store.url) as redis:
        with pytest.raises(StoreError, match="cannot be reached"):
            await check_store(redis)


async def test_a_store_that_wants_a_password_says_so(own_store: StoreProcess):
    """And never repeats one that was wrong."""
    async with connect(own_store.url) as redis:
        await redis.config_set("requirepass", "sesame-7")
    async with connect(own_store.url) as redis:
        with pytest.raises(StoreError, match="give user and password"):
            await check_store(redis)
    async with connect(own_store.url + "?password=wrong-9") as redis:
        with pytest.raises(StoreError, match="refuses this user") as caught:
            await check_store(redis)
    assert "wrong-9" not in str(caught.value)


async def test_a_cancelled_call_ends_its_task(redis: Redis, shared_store: StoreProcess):
    """A task that is cancelled anywhere inside a call stops: else a drain would hang for ever."""
    async with connect(shared_store.url) as client:

        async def for_ever() -> None:
            while True:
                await client.set("x", "y")

        turns = 0
        while turns < 60 or not await redis.exists("x"):  # at least one task came through a whole call
            turns += 1
            task = asyncio.create_task(for_ever())
            for _ in range(turns):
                await asyncio.sleep(0)  # one turn of the loop: each task is caught in another place of its call
            task.cancel()
            await asyncio.wait([task], timeout=0.5)
            ended = task.done()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert ended, f"cancelled after {turns} turns, and went on"
        assert await client.get("x") == b"y"  # the connection serves the next call


async def test_a_store_that_takes_nothing_is_a_time_out(own_store: StoreProcess):
    """A server that stands still (here: stopped by a signal) fails the call after its time-out, and not for ever."""
    async with connect(own_store.url, timeout_s=0.05) as redis:
        queue = await make_job(redis)
        own_store.process.send_signal(signal.SIGSTOP)
        async with asyncio.timeout(10):
            with sent_once(), pytest.raises(OUTAGES):
                await redis.set("x", bytes(16 << 20))  # more than lies in the buffers of a socket: it can't be sent
            with pytest.raises(OUTAGES):
                await claim(queue, "w")
        own_store.process.send_signal(signal.SIGCONT)
        assert (await queue.snapshot()).state == "running"

        async def left() -> bool:
            return (await redis.info("clients"))["connected_clients"] == 1

        await wait_until(left, description="the connection with the large value is done with")


async def test_a_refused_password_is_told_at_once_with_the_stores_own_words() -> None:
    """It is no outage to be waited out; the sentence says what to change and shows no password."""
    store = StoreProcess()
    store.start()
    try:
        admin = connect(store.url)
        await admin.config_set("requirepass", "sesame")
        await admin.aclose()
        redis = connect(store.url.replace("unix://", "unix://default:wrong-one@"))
        with pytest.raises(StoreError, match=r"refuses this user: .*(WRONGPASS|password)") as caught:
            await check_store(redis)
        assert "wrong-one" not in str(caught.value)
        await redis.aclose()
    finally:
        store.close()
