"""A primary with a replica behind a sentinel: how it is found, followed and waited for."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError
from tests.support.ha import SentinelStore, free_port, impatient, running, until
from tests.support.queues import FEEDER, claim, fed_job, make_job
from tests.support.wait import wait_until

from gristmill.cli import _submission
from gristmill.cli._errors import NeedsPersonError
from gristmill.queue import StoreError
from gristmill.queue.connection import NoReplicasError
from gristmill.queue.durable import Place
from gristmill.queue.store import OUTAGES, check_store, connect, shown


@pytest.fixture(scope="module")
def calm() -> Iterator[SentinelStore]:
    """A store that no test hurts for good."""
    with running(SentinelStore()) as store:
        yield store


@pytest.fixture
def store() -> Iterator[SentinelStore]:
    """A store that the test may kill."""
    with running(SentinelStore()) as store:
        yield store


async def test_the_primary_is_found_past_a_dead_sentinel(calm: SentinelStore):
    """The first in the URL is not there; the database number of the URL is used."""
    url = f"redis+sentinel://127.0.0.1:{free_port()},127.0.0.1:{calm.sentinel.port}/mill/3"
    client = connect(url)
    assert (await client.info("server"))["run_id"] == calm.primary.client.info("server")["run_id"]
    await client.set("gm:x", 1)
    await client.aclose()
    assert calm.primary.client.info("keyspace")["db3"]["keys"] == 1


async def test_what_cannot_be_found_is_said(calm: SentinelStore):
    """No such service; no sentinel at all: each is an outage, and at the start of a command a sentence."""
    for url, why in (
        (calm.url.replace("/mill", "/mull"), "no sentinel that answers knows a primary of mull that is up"),
        (f"redis+sentinel://127.0.0.1:{free_port()}/mill", "no sentinel that answers knows a primary of mill"),
    ):
        client = impatient(connect(url))
        with pytest.raises(OUTAGES):
            await client.ping()
        with pytest.raises(StoreError, match=f"the store cannot be reached: {why}"):
            await check_store(client)
        await client.aclose()


async def test_passwords_of_store_and_sentinels_are_apart():
    """Both are used, and shown nowhere: not in the URL as people see it, nor in the client's own text."""
    with running(SentinelStore(password="hunter2")) as store:
        client = connect(store.url)
        assert await client.ping()
        assert "hunter2" not in shown(store.url) + repr(client) + repr(client.connection_pool)
        await client.aclose()
        wrong = connect(store.url.replace(":hunter2@", ":hunter3@"))
        with pytest.raises(StoreError, match="refuses this user"):
            await check_store(wrong)
        await wrong.aclose()


async def test_a_handover_ends_connections_that_write_to_a_replica(store: SentinelStore):
    """The primary is demoted and lives on: the same client goes on with the new one, and nothing raises but outages."""
    client = connect(store.url)
    queue = await fed_job(client, 50)
    old = store.primary
    (new,) = (server for server in store.servers if server is not old)
    until(lambda: new.client.exists(queue.keys.meta), "the replica has the job")
    until(lambda: store.sentinel.client.execute_command("SENTINEL", "FAILOVER", "mill"), "the sentinel agrees")
    claimed: set[int] = set()

    async def all_claimed() -> bool:
        try:
            claimed.update(one.index for one in (await claim(queue, "w.1", 5)).claimed)
        except OUTAGES:
            await asyncio.sleep(0.02)  # as a worker would
        return store.primary is new and len(claimed) >= 20

    await wait_until(all_claimed, description="claims go to the new primary")
    assert new.client.hlen(queue.keys.held("w.1")) >= 20
    await client.aclose()


async def test_a_replica_is_not_taken_for_the_primary(store: SentinelStore):
    """A sentinel that still names a server which has become a replica: an outage, not a store that is unfit."""
    primary = store.primary
    client = impatient(connect(store.url))
    store.sentinel.send(signal.SIGSTOP)  # it learns nothing more
    sleeping = store.servers[1] if primary is store.servers[0] else store.servers[0]
    client.connection_pool._primary.find = _names(primary.address)
    primary.client.replicaof(*sleeping.address)
    with pytest.raises(OUTAGES, match=r"has become a replica|is a replica"):
        await client.set("gm:x", 1)
    with pytest.raises(StoreError, match=r"cannot be reached: .* is a replica") as caught:
        await check_store(client)
    assert isinstance(caught.value.__cause__, OUTAGES)
    store.sentinel.send(signal.SIGCONT)
    await client.aclose()


def _names(address: tuple[str, int]):
    async def find() -> tuple[str, int]:
        return address

    return find


async def test_a_primary_without_enough_replicas_is_an_outage(calm: SentinelStore):
    """NOREPLICAS comes as one of `OUTAGES`, from a script and from a stage, and never with what was staged."""
    client = connect(calm.url)
    queue = await make_job(client)
    calm.primary.client.config_set("min-replicas-to-write", 5)
    with pytest.raises(NoReplicasError):
        await queue.close(0, 0)
    with pytest.raises(OUTAGES) as caught:
        await queue.stage(FEEDER, {"0": b"SENTINEL"})
    assert isinstance(caught.value, NoReplicasError)
    assert "SENTINEL" not in str(caught.value)
    calm.primary.client.config_set("min-replicas-to-write", 0)
    await client.aclose()


async def test_a_job_is_safe_on_disk_and_on_the_replica(calm: SentinelStore):
    """Nothing is lacking; with a replica that hangs that is, and with a log that is never synced the disk."""
    client = connect(calm.url)
    queue = await fed_job(client, 5)
    assert await queue.lacking(2000) == []
    (replica,) = (server for server in calm.servers if server is not calm.primary)
    replica.send(signal.SIGSTOP)
    try:
        assert await queue.lacking(1500) == [Place.REPLICA]
    finally:
        replica.send(signal.SIGCONT)
    calm.primary.client.config_set("appendfsync", "no")
    missing = await queue.lacking(50)
    calm.primary.client.config_set("appendfsync", "everysec")
    if _knows_waitaof(calm):
        assert missing == [Place.DISK]
    await client.aclose()


def _knows_waitaof(store: SentinelStore) -> bool:
    try:
        store.primary.client.execute_command("WAITAOF", 0, 0, 1)
    except ResponseError:
        return False
    return True


async def test_a_primary_that_was_replaced_is_not_asked(store: SentinelStore):
    """It lives, has no replica any more and would say yes at once: the one that has taken its place is asked."""
    client = connect(store.url)
    queue = await fed_job(client, 5)
    old = store.primary
    (new,) = (server for server in store.servers if server is not old)
    assert await queue.lacking(2000) == []
    store.sentinel.send(signal.SIGSTOP)
    new.client.execute_command("REPLICAOF", "NO", "ONE")
    client.connection_pool._primary.find = _names(new.address)
    had = {server: int(server.client.hget(queue.keys.meta, "version")) for server in store.servers}
    assert await queue.lacking(2000) == []
    assert int(old.client.hget(queue.keys.meta, "version")) == had[old]
    assert int(new.client.hget(queue.keys.meta, "version")) == had[new] + 1
    store.sentinel.send(signal.SIGCONT)
    await client.aclose()


async def test_submit_says_yes_only_when_the_job_is_safe(
    calm: SentinelStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """It waits for the replica, says so, and gives up with a sentence and exit code 3; asked again, it says yes."""
    monkeypatch.setattr(_submission, "DURABLE_ASK_MS", 1500)
    monkeypatch.setattr(_submission, "DURABLE_PATIENCE_S", 0.1)
    client = connect(calm.url)
    queue = await fed_job(client, 5)
    (replica,) = (server for server in calm.servers if server is not calm.primary)
    replica.send(signal.SIGSTOP)
    try:
        with pytest.raises(NeedsPersonError, match=r"s of waiting for a replica of the store: look at .* asks again"):
            await _submission.make_durable(queue)
    finally:
        replica.send(signal.SIGCONT)
    assert "waiting for a replica of the store" in capsys.readouterr().err
    monkeypatch.setattr(_submission, "DURABLE_PATIENCE_S", 10)
    await _submission.make_durable(queue)
    await client.aclose()


async def test_a_client_outlives_a_dead_primary(store: SentinelStore):
    """Calls that may be repeated ride through the whole failover, or raise an outage; then everything is there."""
    client: Redis = connect(store.url)
    queue = await fed_job(client, 10)
    assert await queue.lacking(2000) == []
    store.fail_over(queue.job)

    async def back() -> bool:
        try:
            return (await queue.snapshot()).prod == 10
        except OUTAGES:
            return False

    await wait_until(back, description="the new primary has the job")
    assert not queue.rolled_back
    await client.aclose()
