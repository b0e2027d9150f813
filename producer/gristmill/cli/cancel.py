"""`producer cancel JOB`."""

from __future__ import annotations

import click

from gristmill.cli._options import StoreOptions, job_argument, store_options


@click.command("cancel")
@job_argument
@store_options
def command(job: str, store: StoreOptions) -> None:
    """End a job. Answers in flight are still taken, finished work is kept, the rest counts as not run."""
    from gristmill.cli._jobs import control, on_job
    from gristmill.cli._session import Store
    from gristmill.queue.leasequeue import LeaseQueue

    async def act(queue: LeaseQueue, _: Store) -> int:
        done = await control(
            queue,
            queue.cancel,
            "job {job} is {state}; `producer results {job} -o OUT` has what was finished",
            "job {job} is {state}: there is nothing to cancel",
        )
        if done:
            await queue.settle()  # at once where nothing is in flight; else a daemon settles it
        return 0 if done else 2

    on_job(job, store, act)
