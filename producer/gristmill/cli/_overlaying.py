"""The answers of a job's retries, collected and laid over its OUT: the second half of `results`.

Each retry is collected into a work folder of its own (``OUT.<retry>.gm``), as any job; when it has ended, its good
answers are laid over OUT and the folder goes. A crash before leaves the folder, and the same command goes on from it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from gristmill.cli._ending import exit_code, explain, tell
from gristmill.cli._interrupt import interrupts
from gristmill.cli._jobs import DaemonCount
from gristmill.cli._jobview import summarise
from gristmill.cli._making import new_job_id
from gristmill.cli._session import Store
from gristmill.cli._talk import Talk, say
from gristmill.cli._watching import Watcher, needs_somebody
from gristmill.cli._working import Crew, End
from gristmill.contract.lifecycle import TERMINAL
from gristmill.holders import holder, is_dead_here
from gristmill.leftover import keep_failed, origin_of
from gristmill.outlet.collector import Until
from gristmill.outlet.overlay import answers_of, overlay
from gristmill.outlet.proof import Audit, audit_file, prove, summary_of
from gristmill.outlet.workdir import Work
from gristmill.queue.leasequeue import LeaseQueue
from gristmill.queue.replies import JobSnapshot


async def overlay_retries(
    out: Path, parent: LeaseQueue, retries: list[LeaseQueue], store: Store, *, partial: bool, as_json: bool
) -> int:
    """Lay every retry over OUT, waiting for those that run unless `partial`; the exit code.

    Raises:
        WorkBusyError: another process writes OUT.
        ProofError: the counts differ; OUT stands, and everything is kept.
    """
    snapshot = await parent.snapshot()
    code: int | None = None
    with Work.open(out) as lock:
        target = lock.out
        assert target is not None
        for retry in retries:
            code = await _lay_one(target, snapshot, retry, store, partial=partial)
            if code is not None:
                break
        audit = await asyncio.to_thread(audit_file, target, _total(snapshot))
        origin = await asyncio.to_thread(origin_of, await parent.manifest())
        if origin is not None:
            await asyncio.to_thread(keep_failed, target, origin, say)
        lock.remove()
    summary = summary_of(audit, snapshot)
    tell(summary, as_json=as_json)
    return exit_code(summary) if code is None else code


def _total(snapshot: JobSnapshot) -> int:
    return snapshot.prod if snapshot.n is None else snapshot.n


async def _lay_one(target: Path, parent: JobSnapshot, retry: LeaseQueue, store: Store, *, partial: bool) -> int | None:
    """Collect one retry and lay it over OUT; an exit code when that can't be done now."""
    seen = await retry.snapshot()
    if partial and seen.state not in TERMINAL:
        say(f"retry {retry.job} is {seen.state}: its answers are not in {target} yet")
        return None
    folder = target.with_name(f"{target.name}.{retry.job}.gm")
    if not folder.exists() and seen.state in TERMINAL and seen.acked == seen.done:
        return None  # laid over a file before, by this command or another
    with Work.open(None, folder=folder) as work:
        if work.previous is not None and work.previous.epoch == retry.epoch:
            work.resume()
        else:
            work.begin(retry.job, epoch=retry.epoch, store=store.identity)
        code = await _collect(work, retry, store)
        if code is not None:
            return code
        await asyncio.to_thread(_lay, target, _total(parent), work, await retry.chosen() or [])
        work.remove()
    return None


def _lay(target: Path, total: int, work: Work, ordinals: list[int]) -> Audit:
    return overlay(target, answers_of(work, ordinals), work.folder / "out.new", total)


async def _collect(work: Work, retry: LeaseQueue, store: Store) -> int | None:
    """Collect the retry until it has ended, and prove it; an exit code when it has not."""
    manifest, collector = await retry.manifest(), (await retry.snapshot()).collector
    with Talk(manifest.name) as talk:
        daemons = DaemonCount(store, manifest.pool)
        watcher = Watcher(retry, store, talk, ends_paused=needs_somebody, trouble=daemons.trouble)
        crew = Crew(
            retry,
            work,
            watcher,
            token=f"results-{new_job_id()}",
            holder=holder("producer results"),
            take=collector is not None and is_dead_here(collector.holder),
            until=Until.FINISHED,
            private=False,
        )
        with interrupts(crew.kill, talk) as asked:
            outcome = await crew.run(asked)
    snapshot = await retry.snapshot()
    if outcome.end == End.FINISHED and snapshot.state in TERMINAL:
        await asyncio.to_thread(prove, work, snapshot, in_out=False, rolled_back=outcome.rolled_back)
        return None
    return explain(outcome, snapshot, summarise(snapshot), private=False)
