"""`producer resume JOB`."""

from __future__ import annotations

import click

from gristmill.cli._options import StoreOptions, job_argument, store_options


@click.command("resume")
@job_argument
@store_options
def command(job: str, store: StoreOptions) -> None:
    """Let a paused job go on, whatever it was paused for."""
    from gristmill.cli._jobs import control, count_daemons, on_job
    from gristmill.cli._jobview import notes
    from gristmill.cli._session import Store
    from gristmill.cli._talk import say
    from gristmill.queue.leasequeue import LeaseQueue

    async def act(queue: LeaseQueue, opened: Store) -> int:
        snapshot = await control(queue, queue.resume, "job {job} is {state}", "job {job} is {state}, not paused")
        for note in notes(snapshot, await count_daemons(queue, opened)) if snapshot else []:
            say(f"note: {note}")
        return 0 if snapshot else 2

    on_job(job, store, act)
