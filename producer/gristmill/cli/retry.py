"""`producer retry JOB`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gristmill.cli._options import ASSIGNMENT, StoreOptions, json_option, store_options
from gristmill.contract.failure import FailureClass


@click.command("retry")
@click.argument("job", metavar="JOB|OUT")
@click.option(
    "--class",
    "classes",
    metavar="CLASS",
    multiple=True,
    type=click.Choice([str(cls) for cls in FailureClass]),
    help="Only requests that failed so, as the summary calls it; may be repeated.  [default: every class]",
)
@click.option(
    "--set",
    "values",
    metavar="KEY=VALUE",
    multiple=True,
    type=ASSIGNMENT,
    help="Put a JSON value into every body that is sent.",
)
@click.option("-m", "--model", metavar="MODEL", help="Another model.")
@click.option("-e", "--endpoint", "endpoints", metavar="URL", multiple=True, help="Other servers; may be repeated.")
@click.option("-o", "--out", metavar="OUT", help="Stay, and lay the new answers over this file of JOB's results.")
@store_options
@json_option
def command(
    job: str,
    classes: tuple[str, ...],
    values: tuple[tuple[str, Any], ...],
    model: str | None,
    endpoints: tuple[str, ...],
    out: str | None,
    store: StoreOptions,
    as_json: bool,
) -> None:
    """Send the failed requests of a job again, and only those.

    JOB must have ended. The retry is a job of its own, made from the same input, and its id is printed; JOB itself
    never changes. `producer results JOB -o OUT` puts the answers of its retries in the places of the failures.

    OUT, a file of `producer run`, is retried on this machine: its failed lines lie in OUT.failed.jsonl, and the new
    answers take their places in OUT.
    """
    from gristmill.cli._retrying import RetryOptions, retry_job
    from gristmill.cli._session import run_async

    options = RetryOptions(
        classes=[FailureClass(c) for c in classes],
        set=dict(values),
        model=model,
        endpoints=endpoints,
        out=out,
        store=store,
        as_json=as_json,
    )
    if Path(job).is_file():
        if out is not None:
            raise click.UsageError(f"{job} is a file of results itself: leave -o away")
        from gristmill.cli._retrying_out import retry_out

        raise click.exceptions.Exit(run_async(lambda: retry_out(job, options)))
    if as_json and out is None:
        raise click.UsageError("--json goes with -o OUT; without it the id of the retry is printed")
    raise click.exceptions.Exit(run_async(lambda: retry_job(job, options)))
