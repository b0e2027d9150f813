"""A run that ended before anything was begun: INPUT was refused with its first lines, so there is nothing to keep.

Then the feeder's own sentence says all there is to say, and nothing is left behind: no empty OUT, no work folder, no
job. Where lines of an earlier run are at stake, or anything was sealed, this does not apply.
"""

from __future__ import annotations

import contextlib

from gristmill.cli._errors import ExitCode
from gristmill.cli._output import Output
from gristmill.cli._talk import Talk, say
from gristmill.cli._working import End, Outcome
from gristmill.outlet.errors import DiskError
from gristmill.outlet.workdir import Work
from gristmill.queue.errors import JobNotFoundError
from gristmill.queue.leasequeue import LeaseQueue
from gristmill.queue.store import OUTAGES


async def undo_if_vain(outcome: Outcome, queue: LeaseQueue, work: Work, output: Output, talk: Talk) -> bool:
    """Undo a run over a refused INPUT that began nothing; False when there is something to keep or to tell."""
    if outcome.end != End.FEEDER or outcome.code != ExitCode.USAGE:
        return False
    if work.base or work.segments or work.unused_path.exists() or work.ledger.carried.count():
        return False  # lines of earlier runs
    removed = False
    with contextlib.suppress(JobNotFoundError, *OUTAGES):
        if not (await queue.snapshot()).prod:
            await queue.remove()
            removed = True
    if removed:
        talk.pause()
        if not outcome.told:
            say(outcome.message)
        output.discard()
        with contextlib.suppress(DiskError):
            work.remove()
    return removed
