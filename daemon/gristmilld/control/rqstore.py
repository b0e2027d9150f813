"""The store of RQ's keys: the queue's own, or the one that ``--control-redis`` names; RQ can't use a cluster."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from redis import Redis
from redis.connection import parse_url
from redis.sentinel import Sentinel

from gristmill.contract.storeurl import Cluster, Sentinels, parse_store_url
from gristmill.queue.errors import StoreError
from gristmilld.config import DaemonConfig

TIMEOUT_S = 5.0
_NO_CLUSTER = (
    "this daemon feeds, exports and announces no jobs, since RQ cannot use a cluster; "
    "name another store for it with --control-redis"
)


def control_url(config: DaemonConfig) -> str:
    """Where RQ's keys lie."""
    return config.control_redis or config.redis


def why_none(config: DaemonConfig) -> str:
    """Why this daemon can't run the control plane that it is told to run; empty where it can."""
    with suppress(ValueError):  # what is wrong with a URL is said elsewhere
        if config.control and isinstance(parse_store_url(control_url(config)), Cluster):
            return _NO_CLUSTER
    return ""


def control_connection(url: str, name: str) -> Redis:
    """A client for RQ: every call ends in time, also the one that waits for a job (RQ lengthens its time-out).

    Raises:
        StoreError: `url` is a cluster's.
    """
    options: dict[str, Any] = {"socket_timeout": TIMEOUT_S, "socket_connect_timeout": TIMEOUT_S, "client_name": name}
    address = parse_store_url(url)
    if isinstance(address, Cluster):
        raise StoreError("RQ cannot use a cluster: name another store with --control-redis")
    if not isinstance(address, Sentinels):
        client: Redis = Redis.from_url(url, **options)
        return client
    options |= parse_url(address.url)  # type: ignore[no-untyped-call]  # untyped in redis-py
    options["ssl"] = options.pop("connection_class", None) is not None
    del options["host"]
    shared = {name: value for name, value in options.items() if name.startswith(("socket_", "ssl"))}
    asking = {**shared, "username": address.username, "password": address.password}
    following: Redis = Sentinel(list(address.hosts), sentinel_kwargs=asking).master_for(address.service, **options)  # type: ignore[no-untyped-call]  # untyped in redis-py
    return following
