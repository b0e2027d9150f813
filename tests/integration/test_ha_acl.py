"""The users of examples/users.acl work with a primary behind sentinels and with a cluster, each with one rule more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis.asyncio import Redis
from tests.integration.test_control_acl import USERS
from tests.support import roles
from tests.support.ha import SERVICE, ClusterStore, SentinelStore, Server, running
from tests.support.queues import fed_job

from gristmill.queue import StoreError
from gristmill.queue.store import check_store, connect

PLAYERS = {name: rules for name, rules in USERS.items() if name != "rq"}
MORE = {"cluster": "+cluster|slots", "sentinel": "+role"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[ClusterStore]:
    with running(ClusterStore(replicas=False)) as store:
        yield store


@pytest.fixture(scope="module")
def sentinels() -> Iterator[SentinelStore]:
    with running(SentinelStore()) as store:
        yield store


def give(servers: list[Server], role: str, *more: str) -> None:
    """The user `role`, with the rules of the file and `more`, on each server; nothing denied yet."""
    for server in servers:
        server.client.execute_command("ACL", "SETUSER", role, "reset", *PLAYERS[role], *more)
        server.client.execute_command("ACL", "LOG", "RESET")


def denied(servers: list[Server]) -> list[str]:
    found = [entry for server in servers for entry in server.client.acl_log()]
    said = [f"{entry['reason']} {entry['object']}" for entry in found]
    return [what for what in said if what not in roles.NEWER]


def as_user(url: str, role: str) -> Redis:
    scheme, _, rest = url.partition("://")
    return connect(f"{scheme}://{role}:CHANGE-ME@{rest}")


async def play(url: str, admin_url: str, role: str) -> None:
    scenes = (roles.producer, roles.collector, roles.worker, roles.wisher) if role == "control" else (
        getattr(roles, role),
    )  # fmt: skip
    redis, admin = as_user(url, role), connect(admin_url)
    try:
        for scene in scenes:
            await scene(redis, admin)
    finally:
        await redis.aclose()
        await admin.aclose()


@pytest.mark.parametrize("role", PLAYERS)
async def test_a_role_does_all_its_work_in_a_cluster(cluster: ClusterStore, role: str):
    """With the rules of the file and `+cluster|slots` no node denies anything; without that one no node is found."""
    give(cluster.servers, role, MORE["cluster"])
    for server in cluster.servers:
        server.client.flushall()
    await play(cluster.url, cluster.url, role)
    assert denied(cluster.servers) == []
    give(cluster.servers, role)
    redis = as_user(cluster.url, role)
    with pytest.raises(StoreError, match=r"refuses this user: .*cluster\|slots"):
        await check_store(redis)
    await redis.aclose()


@pytest.mark.parametrize("role", PLAYERS)
async def test_a_role_does_all_its_work_behind_sentinels(sentinels: SentinelStore, role: str):
    """With the rules of the file and `+role` nothing is denied; without that one, no connection is made."""
    primary = sentinels.primary
    give([primary], role, MORE["sentinel"])
    primary.client.flushall()
    await play(sentinels.url, sentinels.url, role)
    assert denied([primary]) == []
    give([primary], role)
    redis = as_user(sentinels.url, role)
    with pytest.raises(StoreError, match=r"refuses this user: .*'role'"):
        await check_store(redis)
    await redis.aclose()


async def test_what_a_user_of_the_sentinels_needs(sentinels: SentinelStore):
    """To ask for the primary, and to be named in their list of clients; nothing else."""
    sentinel = sentinels.sentinel
    rules = ("on", ">CHANGE-ME", "-@all", "+sentinel|masters", "+client|setname", "+ping")
    sentinel.client.execute_command("ACL", "SETUSER", "asks", "reset", *rules)
    url = f"redis+sentinel://127.0.0.1:{sentinel.port}/{SERVICE}?sentinel_username=asks&sentinel_password=CHANGE-ME"
    client = connect(url, name="me")
    queue = await fed_job(client, 3)
    assert (await queue.snapshot()).prod == 3
    await queue.remove()
    await client.aclose()
