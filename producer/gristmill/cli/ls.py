"""`producer ls`: the jobs of a store."""

from __future__ import annotations

import click

from gristmill import stdio
from gristmill.cli._options import StoreOptions, json_option, store_options
from gristmill.cli._session import open_store, run_async


@click.command("ls")
@store_options
@json_option
def command(store: StoreOptions, as_json: bool) -> None:
    """List the jobs of a store, the oldest first."""
    raise click.exceptions.Exit(run_async(lambda: _ls(store, as_json)))


async def _ls(options: StoreOptions, as_json: bool) -> int:
    import json

    from gristmill.cli import _jobview
    from gristmill.cli._jobs import look
    from gristmill.queue.errors import JobNotFoundError
    from gristmill.queue.leasequeue import LeaseQueue
    from gristmill.queue.registry import list_jobs

    found = []
    async with open_store(options) as store:
        for listed in await list_jobs(store.redis):
            try:
                queue = await LeaseQueue.attach(store.redis, listed.job)
                found.append((await look(queue), await queue.manifest()))
            except JobNotFoundError:  # just made or just removed
                continue
    found.sort(key=lambda pair: pair[0].created_at_ms)
    if as_json:
        stdio.put(json.dumps([{**_jobview.summarise(s).to_json(), "name": m.name} for s, m in found]))
    elif found:
        stdio.put("\n".join(_jobview.table([_jobview.row(s, m) for s, m in found])))
    else:
        click.echo("no jobs in this store", err=True)
    return 0
