"""The frame of the verbs that act on one job of a store."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

import click

from gristmill.cli._options import StoreOptions
from gristmill.cli._session import Store, open_store, run_async
from gristmill.cli._talk import say
from gristmill.contract.manifest import Manifest
from gristmill.queue.leasequeue import LeaseQueue
from gristmill.queue.replies import ControlReply, ControlStatus, JobSnapshot

DAEMONS_PERIOD_S = 3.0

Act = Callable[[LeaseQueue, Store], Awaitable[int]]


def on_job(
    job: str, store: StoreOptions, act: Act, otherwise: Callable[[Store], Awaitable[bool]] | None = None
) -> None:
    """Attach to `job` and exit with what `act` returns; exit 2 with a sentence when there is no such job.

    `otherwise` is tried when there is none: exit 0 when it says that it has done what was asked for.
    """
    from gristmill.queue.errors import JobNotFoundError

    async def main() -> int:
        async with open_store(store) as opened:
            try:
                queue = await attach(opened, job)
            except JobNotFoundError:
                if otherwise is None or not await otherwise(opened):
                    raise
                return 0
            return await act(queue, opened)

    raise click.exceptions.Exit(run_async(main))


async def attach(store: Store, job: str) -> LeaseQueue:
    """The queue of `job`.

    Raises:
        JobNotFoundError: it is not in the store, or no job can have such a name.
        FormatError: another version of Gristmill made it.
    """
    from gristmill.contract.frame import FormatError
    from gristmill.queue.errors import JobNotFoundError

    try:
        return await LeaseQueue.attach(store.redis, job)
    except FormatError:
        raise
    except ValueError as error:
        raise JobNotFoundError(job) from error


async def look(queue: LeaseQueue) -> JobSnapshot:
    """The job as it stands; a feeder or collector of this machine that was killed is told from a living one at once."""
    return without_the_dead(await queue.snapshot())


def without_the_dead(snapshot: JobSnapshot) -> JobSnapshot:
    """The snapshot without leases of dead processes of this machine, which the store lets live for half a minute."""
    import msgspec

    from gristmill.contract.lifecycle import TERMINAL
    from gristmill.holders import is_dead_here

    dead: dict[str, Any] = {
        role: None
        for role, lease in (("feeder", snapshot.feeder), ("collector", snapshot.collector))
        if lease is not None and is_dead_here(lease.holder)
    }
    if "feeder" in dead and not snapshot.closed and snapshot.state not in TERMINAL:
        dead["feeder_lost"] = True
    return msgspec.structs.replace(snapshot, **dead)


def versions() -> dict[str, str]:
    """What runs here: ourselves, Python, the system, and the library that speaks to the store."""
    import platform

    import redis

    from gristmill._version import __version__

    return {
        "gristmill": __version__,
        "Python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "redis-py": redis.__version__,
    }


async def count_daemons(manifest: Manifest, store: Store) -> int:
    """Live daemons that may work on the job."""
    from gristmill.queue.registry import live_daemons

    return len(await live_daemons(store.redis, manifest.pool))


class DaemonCount:
    """Whether any daemon works for a pool, asked every few seconds."""

    def __init__(self, store: Store, pool: str) -> None:
        self._store = store
        self._pool = pool
        self._asked_s = float("-inf")
        self._none = False

    async def trouble(self) -> str:
        """What to wait for when no daemon is connected; else empty."""
        from gristmill.queue.registry import live_daemons

        if time.monotonic() - self._asked_s > DAEMONS_PERIOD_S:
            self._asked_s = time.monotonic()
            self._none = not await live_daemons(self._store.redis, self._pool)
        return "a daemon: none is connected, start one with `gristmilld up`" if self._none else ""


async def control(
    queue: LeaseQueue, event: Callable[[], Awaitable[ControlReply]], done: str, refused: str
) -> JobSnapshot | None:
    """Let `event` happen and say `done`; None, after `refused`, when it does not apply in the job's state."""
    from gristmill.queue.errors import JobNotFoundError

    reply = await event()
    if reply.status == ControlStatus.GONE:
        raise JobNotFoundError(queue.job)
    if reply.status == ControlStatus.UNCHANGED:
        say(refused.format(job=queue.job, state=reply.state))
        return None
    say(done.format(job=queue.job, state=reply.state))
    return await queue.snapshot()
