"""`producer top`: everything that goes on in a store, live."""

from __future__ import annotations

import click

from gristmill.cli._options import StoreOptions, store_options


@click.command("top")
@store_options
@click.option("--once", is_flag=True, help="Print one plain table and end, as off a terminal.")
def command(store: StoreOptions, once: bool) -> None:
    """Watch jobs, endpoints in trouble, daemons and the store, until q or Ctrl-C.

    Rates are means over the last 30 seconds. What a job waits for stands below it. The store is asked once a second at
    most, and only about the jobs that fit the screen: those that are worked on first, then the newest.
    """
    from gristmill.cli._session import run_async
    from gristmill.cli._top import top

    raise click.exceptions.Exit(run_async(lambda: top(store, once=once)))
