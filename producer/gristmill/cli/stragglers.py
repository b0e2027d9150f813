"""`producer stragglers JOB`: what a job still waits for, and giving it up."""

from __future__ import annotations

import click

from gristmill.cli._options import SECONDS, StoreOptions, job_argument, json_option, store_options


@click.command("stragglers")
@job_argument
@click.option(
    "--older-than",
    metavar="DURATION",
    type=SECONDS,
    default=0.0,
    help="Only requests that were first started so long ago.",
)
@click.option("--most", metavar="N", type=click.IntRange(min=1), default=20, show_default=True, help="The oldest N.")
@click.option(
    "--give-up",
    is_flag=True,
    help="Fail them (class cancelled), all that are older than --older-than, so that the job can end.",
)
@store_options
@json_option
def command(job: str, older_than: float, most: int, give_up: bool, store: StoreOptions, as_json: bool) -> None:
    """List the requests of JOB that were started and have no result yet, the oldest first.

    Look first, then give the same command with --give-up. An answer that has come meanwhile is kept.
    """
    from gristmill.cli._jobs import on_job
    from gristmill.cli._session import Store
    from gristmill.cli._stragglers import give_up_older, show
    from gristmill.queue.leasequeue import LeaseQueue

    if give_up and not older_than:
        raise click.UsageError("--give-up needs --older-than: say from which age on a request is given up")

    async def act(queue: LeaseQueue, _: Store) -> int:
        if give_up:
            return await give_up_older(queue, older_than)
        return await show(queue, older_than, most, as_json=as_json)

    on_job(job, store, act)
