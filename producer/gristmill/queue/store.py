"""The connection to the store, and whether the store is fit for a queue.

Every call has a time-out, dead peers are noticed (keepalive, health check), and what may be repeated is repeated with
back-off after a connection error; what may not fails at once, and its caller decides (see `connection`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec
from redis.asyncio import ConnectionPool, Redis
from redis.backoff import ExponentialWithJitterBackoff
from redis.exceptions import ClusterDownError, NoPermissionError, ReadOnlyError, RedisError, TryAgainError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from gristmill.queue.connection import PROMPT, PatientRetry, refusal
from gristmill.queue.errors import StoreError

OUTAGES: tuple[type[Exception], ...] = (
    RedisConnectionError,  # also: loading its data set, master down
    RedisTimeoutError,
    ReadOnlyError,
    TryAgainError,
    ClusterDownError,
    OSError,
)
"""What a call raises while the store is away, starting or failing over: wait and try again."""

RETRIES = 6
MIN_VERSION = (7, 0)


class StoreInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the store says of itself; `max_memory_bytes` 0 is no limit."""

    product: str
    version: str
    used_memory_bytes: int
    max_memory_bytes: int
    appendonly: bool
    run_id: str
    policy: str = "noeviction"


def connect(
    url: str, *, timeout_s: float = 10.0, connect_timeout_s: float = 5.0, max_connections: int = 64, name: str = ""
) -> Redis:
    """A client of the store at `url` (``redis://``, ``rediss://`` or ``unix://``); it connects when first used.

    Args:
        timeout_s: most time between two reads or writes of one call.
        connect_timeout_s: most time to connect.
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
        pool = ConnectionPool.from_url(url, **options)
    except ValueError:
        raise StoreError(
            f"the store's URL {shown(url)!r} cannot be used: write redis://HOST:PORT, rediss:// or unix:///PATH"
        ) from None
    pool.connection_class = PROMPT[pool.connection_class]
    return Redis.from_pool(pool)


def shown(url: str) -> str:
    """The URL without what may be a secret: user, password and query."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "(not a URL)"
    return f"{parts.scheme}://{host}{port}{parts.path}" if parts.scheme else "(not a URL)"


async def check_store(redis: Redis) -> StoreInfo:
    """What the store is, once it is known to be fit.

    Raises:
        StoreError: it cannot be reached, refuses us, is too old, evicts keys, is a replica or cannot write its log.
    """
    info = await read_info(redis)
    for fault in faults(info).values():
        raise StoreError(fault)
    return store_info(info)


async def read_info(redis: Redis) -> dict[str, Any]:
    """What the store says of itself, by the names of its INFO command.

    Raises:
        StoreError: it cannot be reached, or refuses us.
    """
    try:
        info: dict[str, Any] = await redis.info("everything")
    except (RedisError, OSError) as error:
        refused = error if isinstance(error, NoPermissionError) else refusal(error)
        if refused is not None:
            said = str(refused).rstrip(".")
            raise StoreError(f"the store refuses this user: {said}; give user and password in the URL") from refused
        why = str(error).rstrip(".")
        raise StoreError(f"the store cannot be reached: {why}; is it running, and is the URL right?") from error
    return info


def store_info(info: Mapping[str, Any]) -> StoreInfo:
    """The part of `read_info` that says what store this is."""
    return StoreInfo(
        product="valkey" if "valkey_version" in info else "redis",
        version=str(info.get("valkey_version") or info["redis_version"]),
        used_memory_bytes=int(info.get("used_memory", 0)),
        max_memory_bytes=int(info.get("maxmemory", 0)),
        appendonly=bool(int(info.get("aof_enabled", 0))),
        run_id=str(info.get("run_id", "")),
        policy=policy_of(info),
    )


def policy_of(info: Mapping[str, Any]) -> str:
    """What the store does at its memory limit."""
    return str(info.get("maxmemory_policy", "noeviction"))


def faults(info: Mapping[str, Any]) -> dict[str, str]:
    """Why a store with this `read_info` can't hold the queue: what is wrong with it -> the sentence; none when fit."""
    version, policy = str(info["redis_version"]), policy_of(info)
    found = {
        "version": f"the store is Redis {version}: Redis 7.0 or newer, or Valkey, is needed",
        "eviction": f"the store evicts keys (maxmemory-policy {policy}), so it would lose requests: "
        "CONFIG SET maxmemory-policy noeviction, or use another store",
        "role": "the store is a read-only replica: give the address of its primary",
        "log": "the store cannot write its log (is its disk full?): free space, then try again",
        "cluster": "the store is a cluster node: give a store that runs without cluster mode",
    }
    holds = {
        "version": tuple(int(x) for x in version.split(".")[:2]) < MIN_VERSION,
        "eviction": policy != "noeviction",
        "role": str(info.get("role", "master")) != "master",
        "log": str(info.get("aof_last_write_status", "ok")) != "ok",
        "cluster": bool(int(info.get("cluster_enabled", 0))),
    }
    return {what: sentence for what, sentence in found.items() if holds[what]}
