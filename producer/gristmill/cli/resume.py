"""`producer resume JOB`."""

from __future__ import annotations

import functools

import click

from gristmill.cli._options import StoreOptions, job_argument, store_options


@click.command("resume")
@job_argument
@click.option("--as-is", is_flag=True, help="Send all at once: no request goes first to try the setup again.")
@store_options
def command(job: str, as_is: bool, store: StoreOptions) -> None:
    """Let a paused job go on, whatever it was paused for."""
    from gristmill.cli._jobs import control, count_daemons, on_job
    from gristmill.cli._jobview import is_private, notes
    from gristmill.cli._session import Store
    from gristmill.cli._talk import say
    from gristmill.queue.leasequeue import LeaseQueue

    async def act(queue: LeaseQueue, opened: Store) -> int:
        resume = functools.partial(queue.resume, proven=as_is)
        snapshot = await control(queue, resume, "job {job} is {state}", "job {job} is {state}, not paused")
        if snapshot is None:
            return 2
        manifest = await queue.manifest()
        for note in notes(snapshot, await count_daemons(manifest, opened), private=is_private(manifest)):
            say(f"note: {note}")
        return 0

    on_job(job, store, act)
