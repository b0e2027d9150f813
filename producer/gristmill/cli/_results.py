"""Collecting a job that others feed and run: for `results -o` and for `submit --wait -o`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from gristmill import stdio
from gristmill.cli._ending import conclude
from gristmill.cli._feeding import FeederKeeper
from gristmill.cli._interrupt import interrupts
from gristmill.cli._jobs import DaemonCount
from gristmill.cli._making import new_job_id
from gristmill.cli._output import Output, spare_input
from gristmill.cli._overlaying import overlay_retries
from gristmill.cli._retries import children
from gristmill.cli._session import Store
from gristmill.cli._talk import Talk, say
from gristmill.cli._watching import Scale, Watcher, needs_somebody
from gristmill.cli._working import Crew, End
from gristmill.contract.lifecycle import TERMINAL
from gristmill.holders import holder, is_dead_here
from gristmill.leftover import origin_of
from gristmill.outlet.collector import Until
from gristmill.outlet.peek import peek
from gristmill.outlet.settle import settle_in
from gristmill.outlet.workdir import Work
from gristmill.queue.leasequeue import LeaseQueue


async def print_results(queue: LeaseQueue) -> int:
    """Print what lies in the store; nothing is acked."""
    async for line in peek(queue):
        stdio.put(line)
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
    """Collect the job into `out` until it has ended (with `partial`: what is there now), then lay the answers of its
    retries over it; the exit code.

    Raises:
        OutletError: OUT is somebody else's, or another collector has the job.
    """
    retries = await children(store, queue.job)
    until = Until.DRAINED if partial else Until.FINISHED
    options = _Options(until, take, overwrite, as_json, quiet=bool(retries))
    code, ended = await _collect(out, queue, store, options, make_feeder, scale)
    if retries and ended:
        return await overlay_retries(Path(out), queue, retries, store, partial=partial, as_json=as_json)
    return code


class _Options(NamedTuple):
    """How a job is collected; `quiet` leaves the summary of one that has ended to the caller."""

    until: Until
    take: bool
    overwrite: bool
    as_json: bool
    quiet: bool


async def _collect(
    out: str,
    queue: LeaseQueue,
    store: Store,
    options: _Options,
    make_feeder: Callable[[Callable[[str], None]], FeederKeeper] | None,
    scale: Scale,
) -> tuple[int, bool]:
    """Collect the job itself; the exit code, and whether the job has ended and all of it is in OUT."""
    manifest = await queue.manifest()
    origin = None if options.quiet else await asyncio.to_thread(origin_of, manifest)
    if manifest.source is not None:
        spare_input(out, manifest.source.path)
    with Work.open(Path(out), overwrite=options.overwrite) as work:
        await asyncio.to_thread(settle_in, work, queue.job, epoch=queue.epoch, store=store.identity)
        output = Output(work)
        collector = (await queue.snapshot()).collector
        with contextlib.closing(output), Talk(manifest.name) as talk:
            daemons = DaemonCount(store, manifest.pool)
            watcher = Watcher(queue, store, talk, scale=scale, ends_paused=needs_somebody, trouble=daemons.trouble)
            crew = Crew(
                queue,
                work,
                watcher,
                token=f"results-{new_job_id()}",
                holder=holder("producer results"),
                feeder=make_feeder(talk.say) if make_feeder else None,
                grow=output.grow,
                take=options.take or (collector is not None and is_dead_here(collector.holder)),
                until=options.until,
                private=False,
            )
            with interrupts(crew.kill, talk) as asked:
                outcome = await crew.run(asked)
                code = await conclude(
                    outcome,
                    queue,
                    work,
                    output,
                    talk,
                    watcher,
                    private=False,
                    as_json=options.as_json,
                    origin=origin,
                    quiet=options.quiet,
                )
    return code, outcome.end == End.FINISHED and (await queue.snapshot()).state in TERMINAL
