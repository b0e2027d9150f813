"""The global, advisory keys: which jobs there are, which can run, which daemons live.

Plain commands only. The truth about a job is its own hash: a row that is missing or stale here costs a look, never a
request. A job is announced before its keys are made and kept afterwards, and its row goes last: so whatever dies on the
way, a job that is in the store has a row, and a row without a job is forgotten after ten minutes.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
from redis.asyncio import Redis

from gristmill.contract import keys
from gristmill.contract.keys import JobKeys

ANNOUNCED_MS = 600_000
"""How long a row may wait for its job to appear."""


class DaemonInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What one live daemon says of itself.

    Attributes:
        started_at_ms: on the daemon's wall clock.
        recent_crashes: how many workers have crashed within the last minute.
    """

    daemon_id: str
    host: str
    pid: int
    version: str
    pool: str
    workers: int
    slots: int
    started_at_ms: int
    recent_crashes: int = 0


class JobRow(msgspec.Struct, frozen=True):
    """A row of ``gm:jobs``: `forget_at_ms` is None while the job must be kept, and says nothing of a job that stands
    and has not ended (its creator died before it could say that it must be kept)."""

    job: str
    forget_at_ms: int | None


async def now_ms(redis: Redis) -> int:
    """The store's clock."""
    seconds, micros = await redis.time()
    return int(seconds) * 1000 + int(micros) // 1000


async def announce_job(redis: Redis, job: str) -> None:
    """A job is about to be created: list it for ten minutes, unless it is listed."""
    await redis.zadd(keys.JOBS, {job: await now_ms(redis) + ANNOUNCED_MS}, nx=True)


async def keep_job(redis: Redis, job: str) -> None:
    """The job stands: list it until it is removed."""
    await redis.zadd(keys.JOBS, {job: math.inf})


async def keep_job_until(redis: Redis, job: str, at_ms: int) -> None:
    """The job may be forgotten then; nothing happens when it is not listed any more."""
    await redis.zadd(keys.JOBS, {job: at_ms}, xx=True)


async def forget_job(redis: Redis, job: str) -> None:
    """The job's keys are gone: drop its row."""
    await redis.zrem(keys.JOBS, job)


async def list_jobs(redis: Redis) -> list[JobRow]:
    """Every row, by id; look at each job to know more (`LeaseQueue.attach`), some may be gone."""
    rows: Any = await redis.zrange(keys.JOBS, 0, -1, withscores=True)
    found = [JobRow(job.decode(), None if math.isinf(score) else int(score)) for job, score in rows]
    return sorted(found, key=lambda row: row.job)


async def jobs_to_show(redis: Redis, most: int) -> tuple[list[str], int]:
    """At most `most` jobs, and how many rows there are: first what workers look at, by priority, then the rest; of
    equal ones the newest first, as ids sort by age. Costs the store the same however many there are."""
    async with redis.pipeline(transaction=False) as pipe:
        pipe.zrevrange(keys.RUNNABLE, 0, most - 1)
        pipe.zrevrange(keys.JOBS, 0, most - 1)
        pipe.zcard(keys.JOBS)
        runnable, rows, total = await pipe.execute()
    ids = dict.fromkeys(row.decode() for row in (*runnable, *rows))
    return list(ids)[:most], total


async def tidy_jobs(redis: Redis) -> list[str]:
    """Drop the rows, ten minutes old, that a creator or remover which died left without a job; gives the dropped."""
    now = await now_ms(redis)
    dropped = []
    for row in await list_jobs(redis):
        old = row.forget_at_ms is not None and row.forget_at_ms <= now
        if old and not await redis.exists(JobKeys(row.job).meta):
            await forget_job(redis, row.job)
            dropped.append(row.job)
    return dropped


async def mark_runnable(redis: Redis, job: str, priority: int) -> None:
    """Workers should look at this job."""
    await redis.zadd(keys.RUNNABLE, {job: priority})


async def unmark_runnable(redis: Redis, job: str) -> None:
    """Workers need not look at this job any more."""
    await redis.zrem(keys.RUNNABLE, job)


async def runnable(redis: Redis) -> list[str]:
    """Jobs that workers should look at, highest priority first; of equal ones by id."""
    rows: Any = await redis.zrange(keys.RUNNABLE, 0, -1, withscores=True)
    return [job.decode() for job, _ in sorted(rows, key=lambda row: (-row[1], row[0]))]


async def register_daemon(redis: Redis, info: DaemonInfo, ttl_s: float) -> None:
    """Say that this daemon lives; it counts as gone `ttl_s` after the last call."""
    until_ms = await now_ms(redis) + math.ceil(ttl_s * 1000)
    key = keys.daemon(info.daemon_id)
    async with redis.pipeline(transaction=False) as pipe:
        pipe.hset(key, mapping={"info": msgspec.json.encode(info)})
        pipe.pexpire(key, math.ceil(ttl_s * 1000))
        pipe.zadd(keys.DAEMONS, {info.daemon_id: until_ms})
        await pipe.execute()


async def forget_daemon(redis: Redis, daemon_id: str) -> None:
    """This daemon stops."""
    async with redis.pipeline(transaction=False) as pipe:
        pipe.zrem(keys.DAEMONS, daemon_id)
        pipe.unlink(keys.daemon(daemon_id))
        await pipe.execute()


async def live_daemons(redis: Redis, pool: str | None = None) -> list[DaemonInfo]:
    """The daemons that live now, by id; with `pool` only those of it. Rows of dead ones are dropped on the way."""
    now = await now_ms(redis)
    await redis.zremrangebyscore(keys.DAEMONS, "-inf", now - 1)
    rows: Any = await redis.zrange(keys.DAEMONS, 0, -1)
    ids = [row.decode() for row in rows]
    async with redis.pipeline(transaction=False) as pipe:
        for daemon_id in ids:
            pipe.hget(keys.daemon(daemon_id), "info")
        texts = await pipe.execute() if ids else []
    infos = [msgspec.json.decode(text, type=DaemonInfo) for text in texts if text is not None]
    return sorted((i for i in infos if pool is None or i.pool == pool), key=lambda i: i.daemon_id)
