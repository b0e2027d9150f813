"""The frame of the verbs that act on one job of a store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import click

from gristmill.cli._options import StoreOptions
from gristmill.cli._session import Store, open_store, run_async
from gristmill.cli._talk import say
from gristmill.queue.leasequeue import LeaseQueue
from gristmill.queue.replies import ControlReply, ControlStatus, JobSnapshot

Act = Callable[[LeaseQueue, Store], Awaitable[int]]


def on_job(job: str, store: StoreOptions, act: Act) -> None:
    """Attach to `job` and exit with what `act` returns; exit 2 with a sentence when there is no such job."""

    async def main() -> int:
        async with open_store(store) as opened:
            return await act(await attach(opened, job), opened)

    raise click.exceptions.Exit(run_async(main))


async def attach(store: Store, job: str) -> LeaseQueue:
    """The queue of `job`.

    Raises:
        JobNotFoundError: it is not in the store, or no job can have such a name.
    """
    from gristmill.queue.errors import JobNotFoundError

    try:
        return await LeaseQueue.attach(store.redis, job)
    except ValueError as error:
        raise JobNotFoundError(job) from error


async def count_daemons(queue: LeaseQueue, store: Store) -> int:
    """Live daemons that may work on the job."""
    from gristmill.queue.registry import live_daemons

    manifest = await queue.manifest()
    return len(await live_daemons(store.redis, manifest.pool))


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
