"""`producer results JOB`: collect into a file, or read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gristmill.cli._options import StoreOptions, job_argument, json_option, store_options

if TYPE_CHECKING:
    from gristmill.contract.manifest import Manifest


@click.command("results")
@job_argument
@click.option("-o", "--out", metavar="OUT", help="Collect into this file; without it, what is there is printed.")
@click.option("--take", is_flag=True, help="Take over from another collector; collect a retry by itself.")
@click.option("--partial", is_flag=True, help="Take what is there now, and stop.")
@click.option("--overwrite", is_flag=True, help="Start anew, whatever OUT holds.")
@store_options
@json_option
def command(
    job: str, out: str | None, take: bool, partial: bool, overwrite: bool, store: StoreOptions, as_json: bool
) -> None:
    """Collect the results of a job until it has ended: durable in OUT first, then freed in the store.

    Without -o, prints the results that nobody has collected yet, and leaves them in the store.
    """
    from gristmill.cli._jobs import on_job
    from gristmill.cli._session import Store
    from gristmill.queue.leasequeue import LeaseQueue

    if out is None and (take or partial or overwrite or as_json):
        raise click.UsageError("--take, --partial, --overwrite and --json go with -o OUT")
    if out == "-":
        raise click.UsageError("leave -o away to print results; a collection needs a file")

    async def act(queue: LeaseQueue, opened: Store) -> int:
        from gristmill.cli._results import collect_into, print_results

        if out is None:
            return await print_results(queue)
        if not take:
            _require_no_retry(await queue.manifest())
        return await collect_into(out, queue, opened, take=take, partial=partial, overwrite=overwrite, as_json=as_json)

    on_job(job, store, act)


def _require_no_retry(manifest: Manifest) -> None:
    """Return when the job is none: once collected by itself, a retry can't be laid over its job any more.

    Raises:
        BadUsageError: it is one.
    """
    from gristmill.cli._errors import BadUsageError

    if manifest.parent:
        raise BadUsageError(
            f"job {manifest.job} is a retry: `producer results {manifest.parent} -o OUT` lays its answers over the "
            "job's; with --take they are collected by themselves, and are laid over nothing"
        )
