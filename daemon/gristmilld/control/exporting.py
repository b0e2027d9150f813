"""Collects a job into the file that it wishes, as `producer results` would: durable there first, then freed here.

It takes turns with other exports: after a slice it lets go, and the next attempt goes on from the work folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from pathlib import Path

from gristmill.holders import holder, is_dead_here
from gristmill.leftover import keep_failed, origin_of
from gristmill.outlet.assemble import Grower, Outcome, finish
from gristmill.outlet.collector import Until, collect
from gristmill.outlet.errors import OutletError, ProofError
from gristmill.outlet.proof import prove
from gristmill.outlet.settle import settle_in
from gristmill.outlet.workdir import Work
from gristmill.queue import wishes
from gristmill.queue.replies import JobSnapshot
from gristmill.queue.store import shown
from gristmill.queue.wishes import Wish
from gristmilld.control.horse import Chore, Failure
from gristmilld.control.roots import NotAllowedError, Roots
from gristmilld.control.wanting import is_due
from gristmilld.logs import fields

log = logging.getLogger(__name__)


async def export_job(chore: Chore) -> None:
    """Collect until the job has ended and all of it is in its file, or the slice is over.

    Raises:
        Failure: the file can't be written here and now.
    """
    queue = chore.queue
    manifest = await queue.manifest()
    progress = await wishes.progress(chore.redis, queue.job)
    if not is_due(Wish.EXPORT, manifest, await queue.snapshot(), progress):
        return
    assert manifest.wishes.output is not None, "a job with this wish names a file"
    try:
        target = Path(Roots(chore.inherited.config.allowed_roots).real_path(manifest.wishes.output))
        if not target.parent.is_dir():
            raise Failure(f"the folder of {target} does not exist: make it")
        with Work.open(target) as work:
            await asyncio.to_thread(
                settle_in, work, queue.job, epoch=queue.epoch, store=shown(chore.inherited.config.redis)
            )
            if not await _collect(chore, work):
                return
            work.remove()
    except (OutletError, ProofError, NotAllowedError) as error:
        raise Failure(str(error)) from error
    await wishes.fulfil(chore.redis, queue.job, Wish.EXPORT)
    log.info("the results of a job are exported", extra=fields(job=queue.job))


async def _collect(chore: Chore, work: Work) -> bool:
    """Collect for a slice; whether all of the job is in OUT, complete and proven."""
    queue, stop = chore.queue, asyncio.Event()
    collector = (await queue.snapshot()).collector
    with contextlib.ExitStack() as stack:
        timer = asyncio.get_running_loop().call_later(chore.slice_s, stop.set)
        stack.callback(timer.cancel)
        grower = None if work.base else stack.enter_context(contextlib.closing(Grower(work)))
        done = await collect(
            queue,
            work,
            token=f"{chore.inherited.daemon_id}.export.{secrets.token_hex(4)}",
            holder=holder("gristmilld export"),
            until=Until.FINISHED,
            stop=stop,
            take=collector is not None and is_dead_here(collector.holder),
            grow=None if grower is None else grower.step,
        )
        if not done.finished:
            return False
        snapshot = await queue.snapshot()
        await asyncio.to_thread(_finish, work, snapshot, grower, rolled_back=done.rolled_back)
    manifest = await queue.manifest()
    origin = await asyncio.to_thread(origin_of, manifest, Roots(chore.inherited.config.allowed_roots).allow)
    # where lines were left out, all of INPUT would have to be read again, for longer than a control job may take
    if origin is not None and work.out is not None and origin.recipe.options.on_bad_line != "skip":
        await asyncio.to_thread(keep_failed, work.out, origin, log.info)
    return True


def _finish(work: Work, snapshot: JobSnapshot, grower: Grower | None, *, rolled_back: bool) -> None:
    assembled = finish(work, fed=snapshot.closed, grower=grower)
    prove(work, snapshot, in_out=assembled.outcome is not Outcome.KEPT, rolled_back=rolled_back)
