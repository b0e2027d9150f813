"""`producer submit`: queue INPUT for the daemons of a store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gristmill.cli._options import SECONDS, JobOptions, StoreOptions, job_options, json_option, store_options

if TYPE_CHECKING:
    from gristmill.cli._early import EarlyFeeder


@click.command("submit")
@job_options
@click.option("--wait", is_flag=True, help="Stay until the job has ended, and collect its results into OUT.")
@click.option("-o", "--out", metavar="OUT", help="File of results, with --wait.")
@click.option("--pool", metavar="POOL", default="default", show_default=True, help="Which daemons may work on it.")
@click.option(
    "--keep",
    metavar="DURATION",
    type=SECONDS,
    default=7 * 86400.0,
    help="Forget the job so long after it has ended and all its results have been collected; results that nobody has "
    "collected are kept for ever.  [default: 7d]",
)
@click.option("--detach", is_flag=True, help="Leave the reading of INPUT to a daemon that may read it, and return.")
@click.option("--output", metavar="PATH", help="Have a daemon that may write there collect the results into this file.")
@click.option("--notify", metavar="URL", help="Have a daemon call this webhook, signed, when the job has ended.")
@store_options
@json_option
def command(
    job: JobOptions,
    wait: bool,
    out: str | None,
    pool: str,
    detach: bool,
    output: str | None,
    notify: str | None,
    store: StoreOptions,
    as_json: bool,
) -> None:
    """Read INPUT into the store and print the job's id.

    The id is on stderr at once, and on stdout when the input is durable. When this is killed before, the same command
    goes on where it was. -e may name an endpoint of the daemon's configuration.
    """
    from gristmill.cli._session import run_async

    if wait != (out is not None):
        raise click.UsageError("--wait and -o OUT belong together")
    if wait and (detach or output is not None):
        raise click.UsageError("--wait does here what --detach and --output leave to a daemon: give one or the other")
    if detach and job.input == "-":
        raise click.UsageError("standard input can't be left to a daemon: leave --detach away, or name a file")
    if "-" in (out, output):
        raise click.UsageError("a collection needs a file")
    if as_json and not wait:
        raise click.UsageError("--json goes with --wait; without it the job's id is printed")
    collected = None if output is None else str(Path(output).absolute())

    async def begin(early: EarlyFeeder | None = None) -> int:
        from gristmill.cli._submitting import SubmitOptions, submit
        from gristmill.contract.manifest import Wishes

        wishes = Wishes(detached=detach, output=collected, notify=notify)
        options = SubmitOptions(job=job, store=store, out=out, pool=pool, as_json=as_json, wishes=wishes)
        return await submit(options, early)

    async def begin_early() -> int:
        from gristmill.cli._early import early_feeder

        async with early_feeder() as early:
            return await begin(early)

    raise click.exceptions.Exit(run_async(begin if detach else begin_early))
