"""The global, advisory keys: which jobs there are, which can run, which daemons live."""

from __future__ import annotations

import msgspec
from redis.asyncio import Redis


class DaemonInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What one live daemon says of itself. `started_at_ms` is the daemon's wall clock."""

    daemon_id: str
    host: str
    pid: int
    version: str
    pool: str
    workers: int
    slots: int
    started_at_ms: int


class JobRow(msgspec.Struct, frozen=True):
    """A row of ``gm:jobs``: `forget_at_ms` is None while the job must be kept."""

    job: str
    forget_at_ms: int | None


async def list_jobs(redis: Redis) -> list[JobRow]: ...
async def runnable(redis: Redis) -> list[str]: ...
async def live_daemons(redis: Redis, pool: str | None = None) -> list[DaemonInfo]: ...
async def register_daemon(redis: Redis, info: DaemonInfo, ttl_s: float) -> None: ...
async def forget_daemon(redis: Redis, daemon_id: str) -> None: ...
