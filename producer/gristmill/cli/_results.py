"""Collecting a job that others feed and run: for `results -o` and for `submit --wait -o`."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable
from pathlib import Path

from gristmill.cli._ending import conclude
from gristmill.cli._errors import BadUsageError
from gristmill.cli._feeding import FeederKeeper
from gristmill.cli._interrupt import interrupts
from gristmill.cli._jobs import DaemonCount
from gristmill.cli._making import new_job_id
from gristmill.cli._neighbours import holder, is_dead_neighbour
from gristmill.cli._output import Output, spare_input
from gristmill.cli._session import Store
from gristmill.cli._talk import Talk, say
from gristmill.cli._watching import Scale, Watcher, needs_somebody
from gristmill.cli._working import Crew
from gristmill.outlet.adopt import adopt
from gristmill.outlet.collector import Until
from gristmill.outlet.peek import peek
from gristmill.outlet.workdir import Work
from gristmill.queue.leasequeue import LeaseQueue


async def print_results(queue: LeaseQueue) -> int:
    """Print what lies in the store; nothing is acked."""
    async for line in peek(queue):
        sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
    snapshot = await queue.snapshot()
    if snapshot.acked:
        say(f"{snapshot.acked:,} results had been collected before and are not in the store any more")
    return 0


async def collect_into(
    out: str,
    queue: LeaseQueue,
    store: Store,
    *,
    take: bool = False,
    partial: bool = False,
    overwrite: bool = False,
    as_json: bool = False,
    make_feeder: Callable[[Callable[[str], None]], FeederKeeper] | None = None,
    scale: Scale = Scale(),
) -> int:
    """Collect the job into `out` until it has ended (with `partial`: what is there now); the exit code.

    Raises:
        OutletError: OUT is somebody else's, or another collector has the job.
    """
    manifest = await queue.manifest()
    if manifest.source is not None:
        spare_input(out, manifest.source.path)
    with Work.open(Path(out), overwrite=overwrite) as work:
        try:
            await asyncio.to_thread(_settle_in, work, queue, store)
        except BadUsageError:
            work.close()
            raise
        output = Output(work)
        collector = (await queue.snapshot()).collector
        take = take or (collector is not None and is_dead_neighbour(collector.holder))
        with contextlib.closing(output), Talk(manifest.name) as talk:
            daemons = DaemonCount(store, manifest.pool)
            watcher = Watcher(queue, store, talk, scale=scale, ends_paused=needs_somebody, trouble=daemons.trouble)
            crew = Crew(
                queue,
                work,
                watcher,
                token=f"results-{new_job_id()}",
                holder=holder("results"),
                feeder=make_feeder(talk.say) if make_feeder else None,
                grow=output.grow,
                take=take,
                until=Until.DRAINED if partial else Until.FINISHED,
                private=False,
            )
            with interrupts(crew.kill, talk) as asked:
                outcome = await crew.run(asked)
                return await conclude(outcome, queue, work, output, talk, watcher, private=False, as_json=as_json)


def _settle_in(work: Work, queue: LeaseQueue, store: Store) -> None:
    """Open the generation of this job in the work folder, or begin one.

    Raises:
        BadUsageError: the folder belongs to another job whose lines would be lost.
    """
    previous = work.previous
    if previous is not None and not work.overwrite:
        if (previous.job, previous.epoch) != (queue.job, queue.epoch):
            raise BadUsageError(
                f"{work.folder} has unfinished work of job {previous.job}: finish that first, name another file, "
                "or say --overwrite"
            )
        work.resume()
    else:
        work.begin(queue.job, epoch=queue.epoch, store=store.identity)
    adopt(work)  # also after a resume: an earlier command may have been killed in the middle of it
