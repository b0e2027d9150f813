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
    from gristmill.cli._progress import STALL_S
    from gristmill.cli._session import Store
    from gristmill.queue.leasequeue import LeaseQueue
    from gristmill.queue.scene import look_around
    from gristmill.queue.waiting import idle_s, waits_for

    async def show(queue: LeaseQueue, opened: Store) -> int:
        import json

        snapshot = await queue.snapshot()
        manifest = await queue.manifest()
        daemons = await count_daemons(manifest, opened)
        wait = None
        if idle_s(snapshot) >= STALL_S:
            wait = waits_for(await look_around(opened.redis, queue, snapshot, oldest=True))
        if as_json:
            told = {
                "notes": _jobview.notes(snapshot, daemons),
                "waiting_for": None if wait is None else {"reason": wait.reason, "what": wait.what},
                "idle_s": idle_s(snapshot),
            }
            click.echo(json.dumps({**_jobview.summarise(snapshot).to_json(), **told}))
        else:
            click.echo("\n".join(_jobview.human(snapshot, manifest, daemons, wait)))
        return 0

    on_job(job, store, show)
