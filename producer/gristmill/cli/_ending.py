"""The end of a run: OUT brought to its best state, counted, and explained in one sentence with an exit code."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import sys
from typing import Any

import click

from gristmill.cli._errors import ExitCode
from gristmill.cli._jobview import most_first, paused, report
from gristmill.cli._output import Output
from gristmill.cli._talk import Talk, say
from gristmill.cli._units import format_duration
from gristmill.cli._watching import Watcher, place_of
from gristmill.cli._working import End, Outcome
from gristmill.contract.lifecycle import TERMINAL, JobState
from gristmill.outlet.errors import DiskError
from gristmill.outlet.workdir import Work
from gristmill.queue.leasequeue import LeaseQueue
from gristmill.queue.replies import JobSnapshot
from gristmill.queue.store import OUTAGES

_PASSWORD = re.compile(r"(://[^/@]*:)[^/@]*(@)")


def exit_code(found: dict[str, Any]) -> ExitCode:
    """The exit code of a job that has ended, from its report."""
    if found["state"] != JobState.COMPLETE:
        return ExitCode.ENDED_EARLY
    return ExitCode.FAILED_REQUESTS if found["failed"] else ExitCode.OK


def tell_report(found: dict[str, Any], *, as_json: bool) -> None:
    """The summary on stderr, and the object on stdout when asked for."""
    for line in summary_lines(found):
        say(line)
    if as_json:
        click.echo(json.dumps(found))


def summary_lines(found: dict[str, Any]) -> list[str]:
    """Counts, failures by class, tokens and time, for people."""
    parts = [f"{found['ok']:,} ok", f"{found['failed']:,} failed"]
    parts += [f"{found[key]:,} {key.replace('_', ' ')}" for key in ("waiting", "in_flight", "not_run") if found[key]]
    lines = [f"{found['state']}: {found['total']:,} requests: {', '.join(parts)}"]
    lines += [f"  {n:>9,}  {cls}" for cls, n in most_first(found["by_class"])]
    tokens = found["tokens"]
    lines.append(
        f"{found['attempts']:,} attempts; tokens: {tokens['prompt']:,} prompt, {tokens['completion']:,} completion; "
        f"{format_duration(found['wall_s'])}"
    )
    return lines


def same_command() -> str:
    """This command as it was typed, to be typed again; keys come by environment, passwords are masked."""
    return shlex.join(["producer", *(_PASSWORD.sub(r"\1***\2", word) for word in sys.argv[1:])])


def run_report(snapshot: JobSnapshot) -> dict[str, Any]:
    """`report` over all lines of INPUT, those that an earlier run had finished included."""
    found = report(snapshot)
    carried = place_of(snapshot).carried
    return {**found, "total": found["total"] + carried, "ok": found["ok"] + carried}


async def conclude(
    outcome: Outcome,
    queue: LeaseQueue,
    work: Work,
    output: Output,
    talk: Talk,
    watcher: Watcher,
    *,
    as_json: bool,
    private: bool,
) -> int:
    """Bring OUT to its best state, tell how it went and what to do, and return the exit code.

    A job that has ended leaves nothing behind but OUT: no work folder, and a `private` one nothing in the store either.
    """
    snapshot = await _last_look(queue, watcher)
    if outcome.end != End.DISK:
        outcome = await _assemble(outcome, output, watcher)
    talk.pause()
    found = run_report(snapshot)
    if outcome.end == End.FINISHED and snapshot.state in TERMINAL:
        if private:
            await queue.remove()
        work.remove()
    tell_report(found, as_json=as_json)
    return _explain(outcome, snapshot, found, private=private)


async def _last_look(queue: LeaseQueue, watcher: Watcher) -> JobSnapshot:
    try:
        return await queue.snapshot()
    except OUTAGES:
        if watcher.snapshot is None:
            raise
        return watcher.snapshot


async def _assemble(outcome: Outcome, output: Output, watcher: Watcher) -> Outcome:
    watcher.finalizing = True
    await watcher.look()
    try:
        assembled = await asyncio.to_thread(output.finish, fed=outcome.fed)
    except DiskError as error:
        return Outcome(End.DISK, str(error))
    if assembled.unused:
        say(f"{assembled.unused:,} finished lines are asked for by no line of INPUT any more: see OUT.unused")
    return outcome


def _explain(outcome: Outcome, snapshot: JobSnapshot, found: dict[str, Any], *, private: bool) -> int:
    """Say why the work ended and what to do now; the exit code."""
    again = f"the same command goes on from here:\n  {same_command()}"
    match outcome.end:
        case End.FINISHED if snapshot.state in TERMINAL:
            return exit_code(found)
        case End.FINISHED:
            say(f"took what was there; job {snapshot.job} is {snapshot.state}")
            return ExitCode.OK
        case End.PAUSED:
            say(paused(snapshot, again if private else f"`producer resume {snapshot.job}` goes on"))
            return ExitCode.PAUSED
        case End.INTERRUPTED:
            say(f"interrupted; everything that was finished is kept, {again}")
            return ExitCode.INTERRUPTED
        case End.DISK:
            say(f"paused, storage is at fault: {outcome.message}")
            return ExitCode.PAUSED
        case _:
            say(f"{outcome.message}\neverything that was finished is kept, {again}")
            return outcome.code
