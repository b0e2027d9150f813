"""`producer watch JOB`: live progress until the job has ended."""

from __future__ import annotations

import click

from gristmill.cli._options import StoreOptions, job_argument, json_option, store_options


@click.command("watch")
@job_argument
@store_options
@json_option
def command(job: str, store: StoreOptions, as_json: bool) -> None:
    """Follow a job until it has ended; exits like a run of it would. Ctrl-C stops the watching, not the job."""
    from gristmill.cli._ending import exit_code, tell, with_carried
    from gristmill.cli._jobs import DaemonCount, on_job
    from gristmill.cli._session import Store
    from gristmill.cli._talk import Talk
    from gristmill.cli._watching import Watcher
    from gristmill.queue.leasequeue import LeaseQueue

    async def follow(queue: LeaseQueue, opened: Store) -> int:
        manifest = await queue.manifest()
        with Talk(manifest.name or job) as talk:
            watcher = Watcher(queue, opened, talk, trouble=DaemonCount(opened, manifest.pool).trouble)
            snapshot = await watcher.run()
        summary = with_carried(snapshot)
        tell(summary, as_json=as_json)
        return exit_code(summary)

    on_job(job, store, follow)
