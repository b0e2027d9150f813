"""What jobs want of the control plane, and how far it has come with each wish.

A job's wishes stand in its manifest. ``gm:due`` lists the jobs with one that is still open; it is advisory: who makes a
job announces it, and a sweep announces what was lost. How far the control plane has come stands in the job's hash
``c``, which only the control plane writes:

==================  =================================================================================================
field               content
==================  =================================================================================================
<wish>:attempt      number of the attempt that was enqueued last, from 1
<wish>:not_before   ms of the store's clock before which no other attempt is made
<wish>:failed       attempts in a row that failed
<wish>:done         1 once it is fulfilled
<wish>:error        why the last attempt failed, a sentence; gone once one has gone well
==================  =================================================================================================

Each field is written so that a repetition changes nothing, so two daemons that see the same thing do the same thing.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec
from redis.asyncio import Redis

from gristmill.contract import keys
from gristmill.contract.keys import JobKeys
from gristmill.queue.replies import Lease, Role


class Wish(StrEnum):
    """What the control plane can do for a job."""

    FEED = "feed"
    EXPORT = "export"
    NOTIFY = "notify"


class Progress(msgspec.Struct, frozen=True):
    """How far one wish has come; see the head of the module."""

    attempt: int = 0
    not_before_ms: int = 0
    failed: int = 0
    done: bool = False
    error: str = ""


async def announce(redis: Redis, job: str) -> None:
    """The job has a wish that is open."""
    await redis.sadd(keys.DUE, job)


async def withdraw(redis: Redis, job: str) -> None:
    """No wish of the job is open any more, or the job is gone."""
    await redis.srem(keys.DUE, job)


async def due(redis: Redis) -> list[str]:
    """Jobs that have, or may have, an open wish; by id."""
    rows: Any = await redis.smembers(keys.DUE)
    return sorted(row.decode() for row in rows)


async def progress(redis: Redis, job: str) -> dict[Wish, Progress]:
    """How far the job's wishes have come, every one of them."""
    found: Any = await redis.hgetall(JobKeys(job).control)
    text = {name.decode(): value.decode() for name, value in found.items()}
    return {wish: _one(text, wish) for wish in Wish}


def _one(text: dict[str, str], wish: Wish) -> Progress:
    def number(name: str) -> int:
        return int(text.get(f"{wish}:{name}", 0))

    return Progress(
        number("attempt"), number("not_before"), number("failed"), bool(number("done")), text.get(f"{wish}:error", "")
    )


async def notifier(redis: Redis, job: str, now_ms: int) -> Lease | None:
    """Who is calling the job's webhook just now."""
    names = [f"{Role.NOTIFIER}_{part}" for part in ("token", "holder", "until")]
    found: Any = await redis.hmget(JobKeys(job).meta, names)
    token, who, until = found
    left_ms = int(until or 0) - now_ms
    return None if token is None or left_ms <= 0 else Lease(token.decode(), who.decode(), left_ms)


async def begin(redis: Redis, job: str, wish: Wish, attempt: int) -> None:
    """Attempt number `attempt` is about to be enqueued."""
    await _write(redis, job, {f"{wish}:attempt": str(attempt)})


async def postpone(redis: Redis, job: str, wish: Wish, *, failed: int, not_before_ms: int) -> None:
    """The last attempt failed, the `failed`-th in a row; the next one is made at `not_before_ms`."""
    await _write(redis, job, {f"{wish}:failed": str(failed), f"{wish}:not_before": str(not_before_ms)})


async def fulfil(redis: Redis, job: str, wish: Wish) -> None:
    """It is done."""
    await settle(redis, job, wish)
    await _write(redis, job, {f"{wish}:done": "1"})


async def complain(redis: Redis, job: str, wish: Wish, error: str) -> None:
    """The last attempt failed; `error` says why and what to do."""
    await _write(redis, job, {f"{wish}:error": error})


async def settle(redis: Redis, job: str, wish: Wish) -> None:
    """It has gone well: forget what went wrong before."""
    await redis.hdel(JobKeys(job).control, f"{wish}:error", f"{wish}:failed", f"{wish}:not_before")


async def _write(redis: Redis, job: str, fields: dict[str, str]) -> None:
    """Nothing is written beside a job that was removed: nobody would remove it again."""
    keys_of_job = JobKeys(job)
    if await redis.exists(keys_of_job.meta):
        words: Any = fields
        await redis.hset(keys_of_job.control, mapping=words)
