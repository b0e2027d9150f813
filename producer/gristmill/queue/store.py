"""The connection to the store, and whether the store is fit for a queue.

Every call has a time-out, dead peers are noticed (keepalive, health check), and what may be repeated is repeated with
back-off after a connection error; what may not fails at once, and its caller decides (see `connection`). A primary
behind sentinels and a cluster look to callers as one server does (see `primary`, `cluster`): a failover is an outage.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection, Connection, parse_url
from redis.backoff import ExponentialWithJitterBackoff, NoBackoff
from redis.exceptions import AskError, ClusterDownError, NoPermissionError, ReadOnlyError, RedisError, TryAgainError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from gristmill.contract.storeurl import FORMS, SENTINEL_FORM, Cluster, Host, Sentinels, parse_store_url, shown
from gristmill.queue.cluster import REPEATED, ClusterRedis, each_primary
from gristmill.queue.connection import PROMPT, NoReplicasError, PatientRetry, StoreDiskError, refusal
from gristmill.queue.errors import StoreError
from gristmill.queue.primary import FOLLOWING, FollowingPool, Primary
from gristmill.queue.topology import Topology

__all__ = [
    "MIN_VERSION",
    "OUTAGES",
    "StoreInfo",
    "check_store",
    "connect",
    "faults",
    "read_infos",
    "shown",
    "store_info",
]

OUTAGES: tuple[type[Exception], ...] = (
    RedisConnectionError,  # also: loading its data set
    RedisTimeoutError,
    ReadOnlyError,
    NoReplicasError,
    StoreDiskError,
    AskError,  # also: moved
    TryAgainError,
    ClusterDownError,  # also: master down
    OSError,
)
"""What a call raises while the store is away, starting, failing over or out of disk: wait and try again."""

RETRIES = 6
CHECK_S = 15.0
"""A store that says nothing for so long at the start is taken for absent, whatever its connections still try."""
MIN_VERSION = (7, 0)


class StoreInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the store says of itself; `max_memory_bytes` 0 is no limit."""

    product: str
    version: str
    used_memory_bytes: int
    max_memory_bytes: int
    appendonly: bool
    policy: str = "noeviction"


def connect(
    url: str, *, timeout_s: float = 10.0, connect_timeout_s: float = 5.0, max_connections: int = 64, name: str = ""
) -> Redis:
    """A client of the store at `url` (see `contract.storeurl`); it connects when first used.

    Args:
        timeout_s: most time between two reads or writes of one call.
        connect_timeout_s: most time to connect.
        max_connections: to each server.
        name: shown by CLIENT LIST.

    Raises:
        StoreError: the URL cannot be used.
    """
    options: dict[str, Any] = {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": connect_timeout_s,
        "health_check_interval": 30,
        "max_connections": max_connections,
        "retry": PatientRetry(ExponentialWithJitterBackoff(base=0.05, cap=1.0), RETRIES),
        "client_name": name or None,
    }
    if not url.startswith("unix:"):
        options["socket_keepalive"] = True
    try:
        address = parse_store_url(url)
        if isinstance(address, Sentinels):
            return _following(address, options)
        if isinstance(address, Cluster):
            return _clustered(address, options)
        pool = ConnectionPool.from_url(url, **options)
        _try_options(pool)
    except TypeError:  # the library's: an argument by that name is not known
        raise StoreError(f"the store's URL {shown(url)!r} has an option (after ?) that is not known") from None
    except ValueError as error:
        said = str(error)
        if not said.startswith("the store's URL"):  # the library's, which may hold a part of a password
            said = f"the store's URL {shown(url)!r} cannot be used: write {FORMS}"
        raise StoreError(said) from None
    pool.connection_class = PROMPT[pool.connection_class]
    return Redis.from_pool(pool)


def _try_options(pool: ConnectionPool) -> None:
    """Make a connection that connects to nothing: now, and not at the first call, an option must be known.

    Raises:
        TypeError: it is not.
    """
    pool.connection_class(**pool.connection_kwargs)


def _following(address: Sentinels, options: dict[str, Any]) -> Redis:
    options = {**options, **parse_url(address.url)}
    plain = options.pop("connection_class", None) or Connection
    at_sentinels = {
        name: value
        for name, value in options.items()
        if name.startswith(("socket_", "ssl_")) or name in {"health_check_interval", "retry", "client_name"}
    }
    sentinels = [
        _one(PROMPT[plain], host, {**at_sentinels, "username": address.username, "password": address.password})
        for host in address.hosts
    ]
    primary = Primary(sentinels, address.service)
    pool = FollowingPool(primary=primary, connection_class=FOLLOWING[plain], **options)
    _try_options(pool)
    return Redis.from_pool(pool)


def _clustered(address: Cluster, options: dict[str, Any]) -> Redis:
    patience = PatientRetry(ExponentialWithJitterBackoff(base=0.05, cap=1.0), RETRIES, supported_errors=REPEATED)
    options = {**options, **parse_url(address.url), "retry": PatientRetry(NoBackoff(), 0)}
    plain = options.pop("connection_class", None) or Connection
    _try_options(ConnectionPool(connection_class=PROMPT[plain], **options))
    return ClusterRedis(Topology(address.hosts, lambda host: _one(PROMPT[plain], host, options)), patience)


def _one(kind: type[AbstractConnection], host: Host, options: Mapping[str, Any]) -> Redis:
    """A client of one server."""
    return Redis.from_pool(ConnectionPool(connection_class=kind, **{**options, "host": host[0], "port": host[1]}))


async def check_store(redis: Redis) -> StoreInfo:
    """What the store is, once it is known to be fit; of a cluster every primary.

    Raises:
        StoreError: it cannot be reached, refuses us, is too old, evicts keys, is a replica or cannot write its log.
    """
    infos = await read_infos(redis)
    for where, info in infos.items():
        for fault in faults(info, clustered=bool(where)).values():
            raise StoreError(f"{where}: {fault}" if where else fault)
    return store_info(list(infos.values()))


async def read_infos(redis: Redis) -> dict[str, dict[str, Any]]:
    """What each server says of itself, by the names of its INFO command: address -> that; one server has no address.

    Raises:
        StoreError: it cannot be reached within `CHECK_S`, refuses us, or is a cluster that no server is in charge of.
    """
    try:
        async with asyncio.timeout(CHECK_S):
            found = {where: await server.info("everything") for where, server in await each_primary(redis)}
    except TimeoutError as error:
        raise StoreError(
            f"the store does not answer within {CHECK_S:.0f} s; is it running, and is the URL right (rediss:// is TLS)?"
        ) from error
    except (RedisError, OSError) as error:
        refused = error if isinstance(error, NoPermissionError) else refusal(error)
        if refused is not None:
            said = str(refused).rstrip(".")
            raise StoreError(f"the store refuses this user: {said}; give user and password in the URL") from refused
        why = str(error).rstrip(".")
        raise StoreError(f"the store cannot be reached: {why}; is it running, and is the URL right?") from error
    if not found:
        raise StoreError("the cluster has no primary with slots; make it with redis-cli --cluster create")
    return found


def store_info(infos: Sequence[Mapping[str, Any]]) -> StoreInfo:
    """The part of `read_infos` that says what store this is; of several servers the sum, and the weakest."""
    info = infos[0]
    limits = [int(one.get("maxmemory", 0)) for one in infos]
    return StoreInfo(
        product="valkey" if "valkey_version" in info else "redis",
        version=str(info.get("valkey_version") or info["redis_version"]),
        used_memory_bytes=sum(int(one.get("used_memory", 0)) for one in infos),
        max_memory_bytes=sum(limits) if all(limits) else 0,
        appendonly=all(bool(int(one.get("aof_enabled", 0))) for one in infos),
        policy=policy_of(info),
    )


def policy_of(info: Mapping[str, Any]) -> str:
    """What the store does at its memory limit."""
    return str(info.get("maxmemory_policy", "noeviction"))


def faults(info: Mapping[str, Any], *, clustered: bool = False) -> dict[str, str]:
    """Why a server with this INFO can't hold the queue: what is wrong with it -> the sentence; none when fit.

    Args:
        info: what it says of itself.
        clustered: it is spoken to as a node of a cluster.
    """
    version, policy = str(info["redis_version"]), policy_of(info)
    found = {
        "sentinel": f"the store is a sentinel: write its URL as {SENTINEL_FORM}",
        "version": f"the store is Redis {version}: Redis 7.0 or newer, or Valkey, is needed",
        "eviction": f"the store evicts keys (maxmemory-policy {policy}), so it would lose requests: "
        "CONFIG SET maxmemory-policy noeviction, or use another store",
        "role": "the store is a read-only replica: give the address of its primary",
        "log": "the store cannot write its log (is its disk full?): free space, then try again",
        "cluster": "the store is a node of a cluster: write its URL with redis+cluster:// in place of redis://",
    }
    holds = {
        "sentinel": info.get("redis_mode") == "sentinel",
        "version": tuple(int(x) for x in version.split(".")[:2]) < MIN_VERSION,
        "eviction": policy != "noeviction",
        "role": str(info.get("role", "master")) != "master",
        "log": str(info.get("aof_last_write_status", "ok")) != "ok",
        "cluster": bool(int(info.get("cluster_enabled", 0))) and not clustered,
    }
    return {what: sentence for what, sentence in found.items() if holds[what]}
