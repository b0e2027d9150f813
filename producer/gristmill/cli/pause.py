"""`producer pause JOB`."""

from __future__ import annotations

import click

from gristmill.cli._options import StoreOptions, job_argument, store_options


@click.command("pause")
@job_argument
@store_options
def command(job: str, store: StoreOptions) -> None:
    """Hand out nothing more of a job; what is in flight is finished and kept."""
    from gristmill.cli._jobs import control, on_job
    from gristmill.cli._session import Store
    from gristmill.contract.lifecycle import PauseReason
    from gristmill.queue.leasequeue import LeaseQueue

    async def act(queue: LeaseQueue, _: Store) -> int:
        done = await control(
            queue,
            lambda: queue.pause(PauseReason.USER, ""),
            "job {job} is paused; `producer resume {job}` goes on",
            "job {job} is {state}: it cannot be paused",
        )
        return 0 if done else 2

    on_job(job, store, act)
