"""The frame of one control job, in the process that RQ forks for it (RQ calls it a horse).

A horse does not inherit the death watch of the worker that forked it, so it arms its own first. It works for a slice of
time and then ends, whatever is left: what it did is kept by our own state, and the reconciler brings the rest up again.
So no job blocks a queue for long, and RQ's own time-out is only for one that hangs. SIGTERM ends it early in the same
way. It never fails for RQ: a failure is written into our state, which decides when to try again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Callable

import msgspec
from redis.asyncio import Redis

from gristmill.contract.frame import FormatError
from gristmill.queue import wishes
from gristmill.queue.errors import JobNotFoundError
from gristmill.queue.leasequeue import LeaseQueue
from gristmill.queue.registry import now_ms
from gristmill.queue.store import OUTAGES, connect
from gristmill.queue.wishes import Wish
from gristmilld.config import DaemonConfig
from gristmilld.control.wanting import wait_s
from gristmilld.lifeline import die_with
from gristmilld.logs import fields

log = logging.getLogger(__name__)


class Inherited(msgspec.Struct, frozen=True):
    """What a horse has from the worker that forks it: the daemon's settings and id, and the worker's own pid."""

    config: DaemonConfig
    daemon_id: str
    worker_pid: int


class Failure(Exception):  # noqa: N818  # a value that is told, not a fault of ours
    """The wish can't be fulfilled now: a sentence for whoever looks at the job."""


class Chore(msgspec.Struct, frozen=True):
    """One attempt at a wish: its store, job and daemon, and how long it may take."""

    redis: Redis
    queue: LeaseQueue
    inherited: Inherited
    slice_s: float


Work = Callable[[Chore], Awaitable[None]]

_handed_down: list[Inherited] = []
"""RQ calls functions by name and gives them JSON alone, so what the fork inherits has to be found here."""


def hand_down(inherited: Inherited) -> None:
    """Called once in the RQ worker, before it forks."""
    _handed_down[:] = [inherited]


def run(wish: Wish, job: str, slice_s: float, work: Work) -> None:
    """Work on `wish` of `job` for `slice_s` at most; returns whatever comes of it."""
    (inherited,) = _handed_down
    die_with(inherited.worker_pid)
    asyncio.run(_run(wish, job, slice_s, work, inherited))


async def _run(wish: Wish, job: str, slice_s: float, work: Work, inherited: Inherited) -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        redis = connect(inherited.config.redis, name=f"{inherited.daemon_id}.{wish}")
        async with redis:
            await _attempt(redis, wish, job, slice_s, work, inherited)
    except asyncio.CancelledError:
        log.info("%s of a job stops with the daemon", wish, extra=fields(job=job))
    except OUTAGES as error:
        log.warning("%s of a job is put off: the store cannot be used (%s)", wish, error, extra=fields(job=job))


async def _attempt(redis: Redis, wish: Wish, job: str, slice_s: float, work: Work, inherited: Inherited) -> None:
    try:
        queue = await LeaseQueue.attach(redis, job)
        await work(Chore(redis, queue, inherited, slice_s))
    except (JobNotFoundError, FormatError) as error:
        log.info("%s is dropped: %s", wish, error)
    except Failure as failure:
        await _put_off(redis, wish, job, str(failure))
    except OUTAGES:
        raise
    except Exception as error:
        log.exception("%s of job %s failed, pid %d", wish, job, os.getpid())
        await _put_off(redis, wish, job, f"{type(error).__name__}; the daemon's log says more")


async def _put_off(redis: Redis, wish: Wish, job: str, why: str) -> None:
    failed = (await wishes.progress(redis, job))[wish].failed + 1
    log.warning("%s of job %s: %s", wish, job, why, extra=fields(failed=failed))
    await wishes.complain(redis, job, wish, why)
    at_ms = await now_ms(redis) + round(wait_s(failed) * 1000)
    await wishes.postpone(redis, job, wish, failed=failed, not_before_ms=at_ms)
