"""`producer ls`: the jobs of a store."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from gristmill import stdio
from gristmill.cli._options import StoreOptions, json_option, store_options
from gristmill.cli._session import open_store, run_async

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from gristmill.contract.manifest import Manifest
    from gristmill.queue.replies import JobSnapshot

AT_ONCE = 32
"""So many jobs are asked for at the same time: a store far away would take seconds for each hundred one by one."""


@click.command("ls")
@store_options
@json_option
def command(store: StoreOptions, as_json: bool) -> None:
    """List the jobs of a store, the oldest first."""
    raise click.exceptions.Exit(run_async(lambda: _ls(store, as_json)))


async def _ls(options: StoreOptions, as_json: bool) -> int:
    import json

    from gristmill.cli import _jobview
    from gristmill.queue.registry import list_jobs

    async with open_store(options) as store:
        few = asyncio.Semaphore(AT_ONCE)
        listed = await list_jobs(store.redis)
        seen = await asyncio.gather(*(_seen(store.redis, one.job, few) for one in listed))
    found = sorted((one for one in seen if one is not None), key=lambda pair: pair[0].created_at_ms)
    if as_json:
        stdio.put(json.dumps([{**_jobview.summarise(s).to_json(), "name": m.name} for s, m in found]))
    elif found:
        stdio.put("\n".join(_jobview.table([_jobview.row(s, m) for s, m in found])))
    elif not listed:
        click.echo("no jobs in this store", err=True)
    return 0


async def _seen(redis: Redis, job: str, few: asyncio.Semaphore) -> tuple[JobSnapshot, Manifest] | None:
    """The job as it stands; None when it was just made or just removed, or can't be read, which is said."""
    from gristmill.cli._jobs import look
    from gristmill.contract.frame import FormatError
    from gristmill.queue.errors import JobNotFoundError
    from gristmill.queue.leasequeue import LeaseQueue

    async with few:
        try:
            queue = await LeaseQueue.attach(redis, job)
            return await look(queue), await queue.manifest()
        except JobNotFoundError:
            return None
        except FormatError as error:  # the others can be read
            click.echo(f"job {job} is left out: {error}", err=True)
            return None
