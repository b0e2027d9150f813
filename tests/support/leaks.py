"""Finds our keys in a store that nobody would ever clean up: each has an owner that is listed, or a time to live."""

from __future__ import annotations

import re
from typing import Any

from redis.asyncio import Redis

from gristmill.contract import keys

_OF_JOB = re.compile(r"gm:\{(?P<job>[^}]+)\}:(?P<kind>[a-z]+)(?::(?P<name>.+))?")
_GLOBAL = {keys.JOBS, keys.RUNNABLE, keys.DAEMONS, keys.DUE}


async def leaks(redis: Redis) -> list[str]:
    """What is left without an owner, in words; empty when all is well."""
    jobs = await _names(redis, keys.JOBS)
    found = []
    async for raw in redis.scan_iter(match="gm:*", count=1000):
        key = raw.decode()
        if key in _GLOBAL or await redis.ttl(key) != -1:  # it will go by itself, or is gone already
            continue
        of_job = _OF_JOB.fullmatch(key)
        trouble = await _of_job(redis, of_job, jobs) if of_job else "nobody's, and without a time to live"
        if trouble:
            found.append(f"{key}: {trouble}")
    return sorted(found)


async def _names(redis: Redis, key: str) -> set[str]:
    rows: Any = await redis.zrange(key, 0, -1)
    return {row.decode() for row in rows}


async def _of_job(redis: Redis, key: re.Match[str], jobs: set[str]) -> str:
    """What is wrong with one key of a job; empty when it has its place in the job."""
    job, kind, name = key["job"], key["kind"], key["name"]
    of = keys.JobKeys(job)
    if job not in jobs:
        return "its job is not listed"
    if kind != "m" and not await redis.exists(of.meta):
        return "its job has no hash"
    match kind:
        case "s":
            return "a stage without a time to live"
        case "h":
            return "" if await redis.zscore(of.workers, name) is not None else "held by a token without a lease"
        case "r":
            return "" if await redis.sismember(of.unacked, name) else "a result block that no collector would read"
        case "p":
            return "" if int(name) < int(await redis.hget(of.meta, "sealed_runs") or 0) else "a run that was not sealed"
    return (
        ""
        if kind in {"m", "spec", "x", "d", "k", "w", "q", "qs", "a", "u", "f", "o", "c"}
        else "not in the table of keys"
    )
