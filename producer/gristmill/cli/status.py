"""`producer status JOB`: one job, for people or as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gristmill import stdio
from gristmill.cli._options import StoreOptions, job_argument, json_option, store_options

if TYPE_CHECKING:
    from gristmill.cli._session import Store
    from gristmill.queue.leasequeue import LeaseQueue


@click.command("status")
@job_argument
@store_options
@click.option("--full", is_flag=True, help="Everything that a bug report needs; it holds no key and no prompt.")
@json_option
def command(job: str, store: StoreOptions, full: bool, as_json: bool) -> None:
    """Show one job: its counts, what it waits for, and what to do.

    --json prints the object that run and submit --wait print, too; with --full it is the value of `job` in a larger
    one.
    """
    from gristmill.cli._jobs import on_job

    async def show(queue: LeaseQueue, opened: Store) -> int:
        stdio.put(await _told(queue, opened, full=full, as_json=as_json))
        return 0

    on_job(job, store, show)


async def _told(queue: LeaseQueue, opened: Store, *, full: bool, as_json: bool) -> str:
    """What is printed."""
    import json

    from gristmill.cli import _jobview, _report
    from gristmill.cli._jobs import look, versions
    from gristmill.cli._progress import STALL_S
    from gristmill.cli._wishview import wish_lines
    from gristmill.queue import wishes
    from gristmill.queue.registry import live_daemons
    from gristmill.queue.scene import look_around
    from gristmill.queue.store import read_infos, store_info
    from gristmill.queue.waiting import idle_s, waits_for

    snapshot, manifest = await look(queue), await queue.manifest()
    if as_json and not full:
        return json.dumps(_jobview.summarise(snapshot).to_json())
    daemons = await live_daemons(opened.redis, manifest.pool)
    wait = None
    if idle_s(snapshot) >= STALL_S:
        wait = waits_for(await look_around(opened.redis, queue, snapshot, oldest=True))
    lines = _jobview.human(snapshot, manifest, len(daemons), wait)
    if manifest.wishes:
        lines += wish_lines(manifest, snapshot, await wishes.progress(opened.redis, manifest.job))
    if full:
        found = _report.report(
            snapshot,
            manifest,
            store=store_info(list((await read_infos(opened.redis)).values())),
            store_name=opened.identity,
            daemons=daemons,
            wait=wait,
            versions=versions(),
        )
        if as_json:
            return json.dumps(found)
        lines += _report.lines(found)
    return "\n".join(lines)
