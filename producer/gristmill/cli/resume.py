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
    from gristmill.cli._jobview import is_private, notes
    from gristmill.cli._session import Store
    from gristmill.cli._talk import say
    from gristmill.queue.leasequeue import LeaseQueue

    async def act(queue: LeaseQueue, opened: Store) -> int:
        snapshot = await control(queue, queue.resume, "job {job} is {state}", "job {job} is {state}, not paused")
        if snapshot is None:
            return 2
        manifest = await queue.manifest()
        for note in notes(snapshot, await count_daemons(manifest, opened), private=is_private(manifest)):
            say(f"note: {note}")
        return 0

    on_job(job, store, act)
