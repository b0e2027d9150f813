"""PURE: what is to be done about a wish of a job, from what our own state and the control plane's queue say of it.

Our state is the truth; the queue of control jobs may lose one, run one twice, or keep one that a dead worker had. So a
wish that is due and that nobody is at gets another attempt under another number. A live lease says that somebody is at
it, whatever the queue says.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from gristmill.contract.lifecycle import TERMINAL, JobState, PauseReason
from gristmill.contract.manifest import Manifest
from gristmill.queue.replies import JobSnapshot
from gristmill.queue.wishes import Progress, Wish

GRACE_S = 5.0
"""An attempt that seems lost may only be between two steps for so long: taken from the queue, its lease not taken."""

MAX_FAILURES = 12
"""So many attempts in a row that failed end a wish that nobody else can fulfil: about two hours."""

_FIRST_WAIT_S, _LONGEST_WAIT_S = 2.0, 900.0


class Standing(StrEnum):
    """Where the last attempt stands in the queue of control jobs."""

    ABSENT = "absent"
    """It ended, or was never enqueued, or was lost."""
    WAITING = "waiting"
    LOOSE = "loose"
    """Said to wait or to run, but it is in no queue: a worker has it, or a worker died with it."""


class Sight(msgspec.Struct, frozen=True):
    """One wish as it is seen.

    Attributes:
        due: see `is_due`.
        held: a live process has the lease that the wish needs.
        progress: how far it has come.
        standing: of its last attempt.
        loose_for_s: how long it has been seen `LOOSE` without a lease.
        now_ms: the store's clock.
    """

    due: bool
    held: bool
    progress: Progress
    standing: Standing
    loose_for_s: float
    now_ms: int


def next_attempt(sight: Sight) -> int | None:
    """The number of the attempt to enqueue now; None when there is nothing to do."""
    if not sight.due or sight.held or sight.now_ms < sight.progress.not_before_ms:
        return None
    if sight.standing is Standing.WAITING:
        return None
    if sight.standing is Standing.LOOSE and sight.loose_for_s < GRACE_S:
        return None
    return sight.progress.attempt + 1


def is_open(wish: Wish, manifest: Manifest, snapshot: JobSnapshot, progress: dict[Wish, Progress]) -> bool:
    """Whether the job has the wish and it may yet be fulfilled."""
    wishes = manifest.wishes
    match wish:
        case Wish.FEED:
            return wishes.detached and not snapshot.closed and snapshot.state not in {*TERMINAL, JobState.CANCELLING}
        case Wish.EXPORT:
            return wishes.output is not None and not progress[wish].done
        case Wish.NOTIFY:
            return wishes.notify is not None and not progress[wish].done and progress[wish].failed < MAX_FAILURES


def is_due(wish: Wish, manifest: Manifest, snapshot: JobSnapshot, progress: dict[Wish, Progress]) -> bool:
    """Whether an open wish is to be worked on now."""
    if not is_open(wish, manifest, snapshot, progress):
        return False
    match wish:
        case Wish.FEED:
            # what the feeder itself paused for waits until somebody has mended it and resumed the job
            mended = snapshot.state is not JobState.PAUSED or snapshot.reason is not PauseReason.CONFIG
            return mended or not progress[wish].error
        case Wish.EXPORT:
            return True
        case Wish.NOTIFY:
            exported = not is_open(Wish.EXPORT, manifest, snapshot, progress)
            return snapshot.state in TERMINAL and exported


def wait_s(failed: int) -> float:
    """How long to wait after the `failed`-th failure in a row."""
    return min(_FIRST_WAIT_S * 2.0 ** (failed - 1), _LONGEST_WAIT_S)
