"""A cluster of real nodes: one job's life on it, and what happens when slots and nodes come and go."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator

import pytest
from redis.asyncio import Redis
from tests.support.ha import ClusterStore, Server, impatient, running, until
from tests.support.queues import claim, collect_all, fed_job, finish, make_job
from tests.support.wait import wait_until

from gristmill.queue import LeaseQueue, StoreError, registry
from gristmill.queue.cluster import each_primary
from gristmill.queue.store import OUTAGES, check_store, connect


@pytest.fixture(scope="module")
def calm() -> Iterator[ClusterStore]:
    """A cluster of three nodes that no test hurts for good."""
    with running(ClusterStore(replicas=False)) as store:
        yield store


@pytest.fixture
def own() -> Iterator[ClusterStore]:
    """A cluster with replicas that the test may kill."""
    with running(ClusterStore()) as store:
        yield store


@pytest.fixture
async def redis(calm: ClusterStore) -> AsyncIterator[Redis]:
    client = connect(calm.url)
    for server in calm.primaries:
        server.client.flushall()
    yield client
    await client.aclose()


async def work_off(queue: LeaseQueue, token: str) -> None:
    """Claim and answer until nothing is left."""
    while claimed := (await claim(queue, token)).claimed:
        await finish(queue, token, claimed)


async def test_a_job_lives_from_feeding_to_removal(redis: Redis, calm: ClusterStore):
    """Fed, claimed, answered, collected, listed and removed; then no node has a key of it."""
    jobs = [await fed_job(redis, 30) for _ in range(6)]
    owners = {calm.server_of(queue.job).port for queue in jobs}
    assert len(owners) > 1, "the jobs should lie with several nodes"
    assert {row.job for row in await registry.list_jobs(redis)} == {queue.job for queue in jobs}
    for queue in jobs:
        await work_off(queue, "w.1")
        assert len(await collect_all(queue)) == 30
        assert (await queue.snapshot()).state == "complete"
        assert await queue.lacking(1000) == []
        await queue.remove()
    for _, node in await each_primary(redis):
        assert await node.dbsize() == 0


async def test_replies_of_a_pipeline_come_in_its_order(redis: Redis):
    """Commands for several nodes, with and without a key, among each other."""
    async with redis.pipeline(transaction=False) as pipe:
        for number in range(50):
            pipe.set(f"gm:x{number}", number)
        pipe.time()
        for number in range(50):
            pipe.get(f"gm:x{number}")
        replies = await pipe.execute()
    assert replies[:50] == [True] * 50
    assert len(replies[50]) == 2
    assert [int(reply) for reply in replies[51:]] == list(range(50))


async def test_an_error_in_a_pipeline_tells_nothing_of_the_command(redis: Redis):
    """It is raised as it came; without raising it stands in its place among the replies."""
    await redis.set("gm:text", "x")
    for raising in (True, False):
        async with redis.pipeline(transaction=False) as pipe:
            pipe.hset("gm:text", "field", "SENTINEL")
            pipe.get("gm:text")
            if raising:
                with pytest.raises(Exception, match="WRONGTYPE") as caught:
                    await pipe.execute()
                assert "SENTINEL" not in str(caught.value)
            else:
                error, value = await pipe.execute(raise_on_error=False)
                assert "WRONGTYPE" in str(error)
                assert value == b"x"


async def test_every_node_is_looked_at(redis: Redis, calm: ClusterStore):
    """One node that evicts is enough to refuse the cluster, by its address; memory is that of all."""
    info = await check_store(redis)
    assert info.used_memory_bytes > 3 << 19
    sick = calm.primaries[2]
    sick.client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(StoreError, match=rf"127.0.0.1:{sick.port}: the store evicts keys"):
            await check_store(redis)
    finally:
        sick.client.config_set("maxmemory-policy", "noeviction")


async def test_scripts_that_were_forgotten_are_loaded_where_the_job_lies(redis: Redis, calm: ClusterStore):
    """A single call, a pipeline of calls, and a job that is made."""
    queue = await fed_job(redis, 4)
    await claim(queue, "w.1", 2)
    for server in calm.primaries:
        server.client.script_flush()
    assert await queue.reap_expired() == 0
    for server in calm.primaries:
        server.client.script_flush()
    assert (await queue.snapshot()).in_flight == 2
    for server in calm.primaries:
        server.client.script_flush()
    assert (await make_job(redis)).block_size == 8


async def test_a_url_of_the_wrong_kind_is_told(calm: ClusterStore):
    """A node taken for a store of its own, and a store taken for a cluster: the sentence has the right form."""
    plain = connect(f"redis://127.0.0.1:{calm.primaries[0].port}")
    with pytest.raises(StoreError, match=r"is a node of a cluster: write its URL with redis\+cluster://"):
        await check_store(plain)
    await plain.aclose()
    alone = Server().start()
    wrong = connect(f"redis+cluster://127.0.0.1:{alone.port}")
    try:
        with pytest.raises(StoreError, match=r"no cluster .*write its URL with redis:// in place"):
            await check_store(wrong)
    finally:
        await wrong.aclose()
        alone.close()


async def test_a_slot_that_is_moved_is_waited_for_and_followed(redis: Redis, calm: ClusterStore):
    """While its keys lie with two nodes calls wait; afterwards they go to the new one, and nothing is lost."""
    queue = await fed_job(redis, 20)
    await claim(queue, "w.1", 5)
    source = calm.server_of(queue.job)
    target = next(server for server in calm.primaries if server is not source)
    slot = source.client.execute_command("CLUSTER", "KEYSLOT", queue.keys.meta)
    ids = {server: server.client.execute_command("CLUSTER", "MYID").decode() for server in (source, target)}
    target.client.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source])
    source.client.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[target])
    found = source.client.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 1000)
    half = [key for key in found if key != queue.keys.meta.encode()][: len(found) // 2]
    source.client.execute_command("MIGRATE", *target.address, "", 0, 5000, "KEYS", *half)
    waiting = asyncio.create_task(claim(queue, "w.2", 5))
    patient = asyncio.create_task(queue.snapshot())
    with pytest.raises(OUTAGES):
        await waiting
    rest = source.client.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 1000)
    source.client.execute_command("MIGRATE", *target.address, "", 0, 5000, "KEYS", *rest)
    for server in (target, source, *calm.primaries):
        server.client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", ids[target])
    assert (await patient).in_flight == 5
    assert len((await claim(queue, "w.2", 5)).claimed) == 5
    assert calm.server_of(queue.job) is target
    await work_off(queue, "w.3")
    await queue.reap("w.1", force=True, crashed=False)
    await queue.reap("w.2", force=True, crashed=False)
    await work_off(queue, "w.3")
    assert sorted(await collect_all(queue)) == list(range(20))
    await queue.remove()


async def test_a_node_that_is_away_is_an_outage(calm: ClusterStore):
    """Every call raises one of `OUTAGES` until it is back; then all goes on."""
    client = impatient(connect(calm.url, timeout_s=1, connect_timeout_s=1))
    queue = await fed_job(client, 10)
    gone = calm.server_of(queue.job)
    gone.kill()
    try:
        with pytest.raises(OUTAGES):
            await queue.snapshot()
        with pytest.raises(OUTAGES):
            await claim(queue, "w.1", 1)
        async with client.pipeline(transaction=False) as pipe:
            for number in range(20):
                pipe.get(f"gm:x{number}")
            with pytest.raises(OUTAGES):
                await pipe.execute()
    finally:
        gone.start()

    async def whole() -> bool:
        try:
            return len((await claim(queue, "w.1", 10)).claimed) > 0
        except OUTAGES:
            return False

    await wait_until(whole, description="the job can be worked on again")
    await client.aclose()


async def test_a_handover_is_followed_call_by_call(own: ClusterStore):
    """The primary steps down for its replica while calls go on: no call fails, not even one that is sent once."""
    client = connect(own.url)
    queue = await fed_job(client, 400)
    old = own.server_of(queue.job)
    new = own.replica_of(old)
    new.client.execute_command("CLUSTER", "FAILOVER")
    held = 0
    while own.server_of(queue.job) is old or held < 100:
        held += len((await claim(queue, "w.1", 1)).claimed)
    assert own.server_of(queue.job) is new
    assert len(await queue.held("w.1")) == held
    await client.aclose()


async def test_a_primary_that_hangs_is_left(own: ClusterStore):
    """A stopped process answers nobody; after the time-out its replica is found."""
    client = connect(own.url, timeout_s=0.5, connect_timeout_s=0.5)
    queue = await fed_job(client, 10)
    old = own.server_of(queue.job)
    old.send(signal.SIGSTOP)
    try:
        until(lambda: own.replica_of(old).client.info("replication")["role"] == "master", "the replica takes over")
        assert (await queue.snapshot()).prod == 10
    finally:
        old.send(signal.SIGCONT)
    await client.aclose()


async def test_a_command_that_begins_in_a_failover_waits_a_while(own: ClusterStore):
    """The check of the store at the start of every command rides through it: all primaries are found in the end."""
    client = connect(own.url)
    assert await check_store(client)
    own.server_of("any").kill()
    assert await check_store(client)
    assert len(await each_primary(client)) == 3
    await client.aclose()
