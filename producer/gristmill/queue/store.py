"""The connection to the store, and whether the store is fit."""

from __future__ import annotations

import msgspec
from redis.asyncio import Redis


class StoreInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the store says of itself; `max_memory_bytes` 0 is no limit."""

    product: str
    version: str
    used_memory_bytes: int
    max_memory_bytes: int
    appendonly: bool
    run_id: str


def connect(
    url: str, *, timeout_s: float = 10.0, connect_timeout_s: float = 5.0, max_connections: int = 64, name: str = ""
) -> Redis: ...
async def check_store(redis: Redis) -> StoreInfo: ...
