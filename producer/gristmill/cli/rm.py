"""`producer rm JOB`."""

from __future__ import annotations

import click

from gristmill.cli._errors import BadUsageError
from gristmill.cli._options import StoreOptions, job_argument, store_options


@click.command("rm")
@job_argument
@click.option("--force", is_flag=True, help="Also a job that is not finished, or whose results nobody has collected.")
@store_options
def command(job: str, force: bool, store: StoreOptions) -> None:
    """Remove a job and everything it holds from the store."""
    from gristmill.cli._jobs import on_job
    from gristmill.cli._session import Store
    from gristmill.cli._talk import say
    from gristmill.contract.lifecycle import TERMINAL
    from gristmill.queue.controlling import finish_removal
    from gristmill.queue.leasequeue import LeaseQueue

    async def act(queue: LeaseQueue, _: Store) -> int:
        snapshot = await queue.snapshot()
        if not force and snapshot.state not in TERMINAL:
            raise BadUsageError(f"job {job} is {snapshot.state}: `producer cancel {job}` first, or --force")
        left = snapshot.done - snapshot.acked
        if not force and left:
            raise BadUsageError(
                f"job {job} has {left:,} results that nobody has collected: "
                f"`producer results {job} -o OUT` first, or --force"
            )
        await queue.remove()
        say(f"job {job} is removed")
        return 0

    async def half_removed(opened: Store) -> bool:
        """A `rm` that was killed has left a job that nobody can attach to any more."""
        done = await finish_removal(opened.redis, job)
        if done:
            say(f"job {job} is removed")
        return done

    on_job(job, store, act, half_removed)
