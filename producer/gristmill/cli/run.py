"""`producer run`: everything on this machine."""

from __future__ import annotations

import click

from gristmill.cli._options import SECONDS, JobOptions, StoreOptions, job_options, json_option, store_options


@click.command("run")
@job_options
@click.option("-o", "--out", metavar="OUT", required=True, help="File of results, one line per request; - is stdout.")
@click.option(
    "--workers", metavar="N", type=click.IntRange(1, 1024), help="Worker processes.  [default: one per core, at most 8]"
)
@click.option(
    "--concurrency", metavar="C", type=click.IntRange(1, 65_536), help="Requests in flight per worker.  [default: 256]"
)
@click.option("--overwrite", is_flag=True, help="Start anew, whatever OUT holds.")
@click.option(
    "--wait-for-endpoint",
    "patience_s",
    metavar="SECONDS",
    type=SECONDS,
    default=0.0,
    help="Wait so long for a first endpoint to come up.",
)
@store_options
@json_option
def command(
    job: JobOptions,
    out: str,
    workers: int | None,
    concurrency: int | None,
    overwrite: bool,
    patience_s: float,
    store: StoreOptions,
    as_json: bool,
) -> None:
    """Send every request of INPUT and write one result for each to OUT.

    INPUT is JSON lines, plain, .gz or .zst; - is standard input. The same command again does only what is missing.
    """
    from gristmill.cli._session import run_async

    if out == "-" and as_json:
        raise click.UsageError("--json and -o - both want standard output: give OUT a file")

    async def begin() -> int:
        from gristmill.cli._early import early_feeder

        async with early_feeder() as early:
            from gristmill.cli._runner import RunOptions, run

            options = RunOptions(
                job=job,
                store=store,
                out=out,
                workers=workers,
                concurrency=concurrency,
                overwrite=overwrite,
                patience_s=patience_s,
                as_json=as_json,
            )
            return await run(options, early)

    raise click.exceptions.Exit(run_async(begin))
