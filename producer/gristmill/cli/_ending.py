"""The end of a run: OUT brought to its best state, counted, and explained in one sentence with an exit code."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import sys

import msgspec

from gristmill import stdio
from gristmill.cli._errors import ExitCode
from gristmill.cli._jobview import paused, summarise
from gristmill.cli._output import Output
from gristmill.cli._talk import Talk, say
from gristmill.cli._watching import PERIOD_S, Watcher, place_of
from gristmill.cli._working import End, Outcome
from gristmill.contract.lifecycle import TERMINAL, JobState
from gristmill.leftover import Origin, keep_failed
from gristmill.outlet.assemble import Outcome as Assembling
from gristmill.outlet.errors import DiskError
from gristmill.outlet.proof import prove
from gristmill.outlet.summary import Summary
from gristmill.outlet.workdir import Work
from gristmill.queue.leasequeue import LeaseQueue
from gristmill.queue.replies import JobSnapshot
from gristmill.queue.store import OUTAGES

_PASSWORD = re.compile(r"(://[^/@]*:)[^/@]*(@)")


def exit_code(summary: Summary) -> ExitCode:
    """The exit code of a job that has ended."""
    if summary.state != JobState.COMPLETE:
        return ExitCode.ENDED_EARLY
    return ExitCode.FAILED_REQUESTS if summary.failed else ExitCode.OK


def tell(summary: Summary, *, as_json: bool) -> None:
    """The summary on stderr, and as an object on stdout when asked for."""
    say(summary.to_text())
    if as_json:
        stdio.put(json.dumps(summary.to_json()))


def same_command() -> str:
    """This command as it was typed, to be typed again; keys come by environment, passwords are masked."""
    return shlex.join(["producer", *(_PASSWORD.sub(r"\1***\2", word) for word in sys.argv[1:])])


def vanished(job: str) -> str:
    """What is said when the store does not know a job of ours any more."""
    return (
        f"job {job} is no longer in the store: it was removed, or the store has lost its data; everything that was "
        f"collected is kept, the same command goes on from here:\n  {same_command()}"
    )


def with_carried(snapshot: JobSnapshot) -> Summary:
    """The job's counts, with the lines that an earlier run had finished."""
    summary, carried = summarise(snapshot), place_of(snapshot).carried
    return msgspec.structs.replace(summary, total=summary.total + carried, ok=summary.ok + carried)


async def conclude(
    outcome: Outcome,
    queue: LeaseQueue,
    work: Work,
    output: Output,
    talk: Talk,
    watcher: Watcher,
    *,
    private: bool,
    as_json: bool,
    origin: Origin | None = None,
    quiet: bool = False,
) -> int:
    """Bring OUT to its best state, prove it, tell how it went and what to do, and return the exit code.

    A job that has ended leaves nothing behind but OUT and, where `origin` is known, its failed requests: no work
    folder, and a `private` one nothing in the store either. `quiet` leaves it to the caller to tell the summary of such
    a job.

    Raises:
        ProofError: the counts differ; everything is kept.
    """
    snapshot = await _last_look(queue, watcher)
    summary = with_carried(snapshot)
    if outcome.end != End.DISK:
        watcher.finalizing = True
        finishing = asyncio.create_task(asyncio.to_thread(_finish, outcome, snapshot, work, output, talk))
        while not finishing.done():
            await watcher.look()
            await asyncio.wait({finishing}, timeout=PERIOD_S)
        try:
            summary = finishing.result()
        except DiskError as error:
            outcome = Outcome(End.DISK, str(error))
    talk.pause()
    ended = outcome.end == End.FINISHED and snapshot.state in TERMINAL
    if ended:
        if work.out is not None and origin is not None and not work.holds_more:
            await asyncio.to_thread(keep_failed, work.out, origin, say)
        if private:
            await queue.remove()
        if not work.remove():
            say(f"{work.folder} keeps finished results that OUT has not; the same command goes on from them")
    if not (quiet and ended):
        tell(summary, as_json=as_json)
    return explain(outcome, snapshot, summary, private=private)


def _finish(outcome: Outcome, snapshot: JobSnapshot, work: Work, output: Output, talk: Talk) -> Summary:
    """Complete and prove OUT; blocks on the disk."""
    # a job that ended early ends its feeder, too; one that goes on later still owes the old OUT's failed lines a result
    fed = outcome.fed and snapshot.closed and snapshot.state in TERMINAL
    assembled = output.finish(fed=fed, complete=snapshot.state == JobState.COMPLETE)
    if assembled.unused:
        talk.say(
            f"{assembled.unused:,} finished lines are asked for by no line of INPUT any more: see {work.unused_path}"
        )
    in_out = assembled.outcome != Assembling.KEPT
    return prove(work, snapshot, in_out=in_out, rolled_back=outcome.rolled_back)


async def _last_look(queue: LeaseQueue, watcher: Watcher) -> JobSnapshot:
    try:
        return await queue.snapshot()
    except OUTAGES:
        if watcher.snapshot is None:
            raise
        return watcher.snapshot


def explain(outcome: Outcome, snapshot: JobSnapshot, summary: Summary, *, private: bool) -> int:
    """Say why the work ended and what to do now; the exit code."""
    again = f"the same command goes on from here:\n  {same_command()}"
    match outcome.end:
        case End.FINISHED if snapshot.state in TERMINAL:
            if snapshot.state == JobState.EXPIRED:
                say(f"the deadline has passed; everything that was finished is kept{f', {again}' if private else ''}")
            return exit_code(summary)
        case End.FINISHED:
            say(f"took what was there; job {snapshot.job} is {snapshot.state}")
            return ExitCode.OK
        case End.PAUSED:
            say(paused(snapshot, again if private else f"`producer resume {snapshot.job}` goes on"))
            return ExitCode.PAUSED
        case End.INTERRUPTED:
            why = f": {outcome.message}" if outcome.message else ""
            say(f"interrupted{why}; everything that was finished is kept, {again}")
            return ExitCode.INTERRUPTED
        case End.DISK:
            say(f"paused, storage is at fault: {outcome.message}")
            return ExitCode.PAUSED
        case End.FEEDER:
            said = "" if outcome.told else f"{outcome.message}\n"
            say(f"{said}INPUT was not read to its end; everything that was finished is kept. Mend it, then {again}")
            return outcome.code
        case _:
            say(f"{outcome.message}\neverything that was finished is kept, {again}")
            return outcome.code
