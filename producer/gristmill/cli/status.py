"""`producer status JOB`: one job, for people or as JSON."""

from __future__ import annotations

import click

from gristmill.cli._options import StoreOptions, job_argument, json_option, store_options


@click.command("status")
@job_argument
@store_options
@json_option
def command(job: str, store: StoreOptions, as_json: bool) -> None:
    """Show one job: its counts, what it waits for, and what to do."""
    from gristmill.cli import _jobview
    from gristmill.cli._jobs import count_daemons, on_job
    from gristmill.cli._session import Store
    from gristmill.queue.leasequeue import LeaseQueue

    async def show(queue: LeaseQueue, opened: Store) -> int:
        import json

        snapshot = await queue.snapshot()
        manifest = await queue.manifest()
        daemons = await count_daemons(manifest, opened)
        if as_json:
            click.echo(
                json.dumps({**_jobview.summarise(snapshot).to_json(), "notes": _jobview.notes(snapshot, daemons)})
            )
        else:
            click.echo("\n".join(_jobview.human(snapshot, manifest, daemons)))
        return 0

    on_job(job, store, show)
