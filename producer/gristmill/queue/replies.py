"""What the queue's calls take and give back, as typed values.

Every reply carries the job's `version`, which rises with every change: a lower one than seen before means that the
store lost a suffix of its history. A reply of status ``GONE`` (the job was removed, or another one has its id) has
the state `deleting`.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from gristmill.contract.failure import FailureClass
from gristmill.contract.lifecycle import JobState, PauseReason

DEADLINE_GRACE_MS = 1000
"""Nothing is handed out after a deadline, but answers that reached a worker before it are still on their way."""


class Role(StrEnum):
    """Who takes a lease on a whole job."""

    FEEDER = "feeder"
    COLLECTOR = "collector"
    NOTIFIER = "notifier"


class SealStatus(StrEnum):
    OK = "OK"
    DUP = "DUP"
    """The run was sealed before: go on after `cursor`."""
    GAP = "GAP"
    """The run does not follow what the store has (it lost a suffix): rewind to `cursor`."""
    FULL = "FULL"
    """Above the payload mark, or the store is at its memory limit: the stage is kept, retry only the seal."""
    TORN = "TORN"
    """The stage is incomplete (expired, or the store restarted): stage again."""
    LOST = "LOST"
    """Another feeder holds the lease, or nobody does."""
    CLOSED = "CLOSED"
    CANCELLED = "CANCELLED"
    GONE = "GONE"


class CloseStatus(StrEnum):
    OK = "OK"
    GAP = "GAP"
    """Not as many runs or requests in the store as were sealed: rewind to the snapshot's cursor."""
    CANCELLED = "CANCELLED"
    GONE = "GONE"


class ClaimStatus(StrEnum):
    OK = "OK"
    EMPTY = "EMPTY"
    """Nothing to hand out now."""
    IDLE = "IDLE"
    """The job is not running; `state` says what it is."""
    LOST = "LOST"
    """The token was reaped: forget what it held and go on with a new token."""
    GONE = "GONE"


class CommitStatus(StrEnum):
    OK = "OK"
    ENDED = "ENDED"
    """The job is cancelled or expired: what was held is released, no record was kept."""
    GONE = "GONE"


class RenewStatus(StrEnum):
    OK = "OK"
    LOST = "LOST"
    GONE = "GONE"


class ReapStatus(StrEnum):
    OK = "OK"
    NONE = "NONE"
    """No such token."""
    ALIVE = "ALIVE"
    """Its lease has not run out, and the reap was not forced."""
    GONE = "GONE"


class AckStatus(StrEnum):
    OK = "OK"
    LOST = "LOST"
    """Another collector holds the lease, or nobody does: nothing was acked."""
    GONE = "GONE"


class ControlStatus(StrEnum):
    OK = "OK"
    UNCHANGED = "UNCHANGED"
    """The event does not apply in this state (or not yet): nothing was changed."""
    GONE = "GONE"


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One payload run to seal.

    Attributes:
        run: number of the run, from 0, dense.
        first: its first index; must be the number of requests sealed so far.
        count: how many requests it has, at least 1.
        bytes: sum of the lengths of all staged values (what `stage` returned).
        fields: number of staged fields: `count` frames and the pictures.
        cursor: where the feeder stands after this run; opaque here, stored with the run.
    """

    run: int
    first: int
    count: int
    cursor: bytes
    fields: int
    bytes: int


class Claimed(msgspec.Struct, frozen=True, gc=False):
    """One index that a token now holds.

    Attributes:
        index: the request.
        run: the payload run its frame lies in.
        claim: the claim number; with the token it is the fence for giving the index back. It is the time of the
            claim, ms of the store's clock (a little ahead when several claims fall into one ms).
        attempts: charged attempts so far.
        crashes: how often a worker crashed while holding it.
        suspect: held in a cohort of suspects; the token gets nothing else until they are settled.
        poison: never run it: fetch the frame and commit a failed record of class `poison`.
        first_ms: when it was claimed for the first time, as `claim` counts; 0 when that is now.
    """

    index: int
    run: int
    claim: int
    attempts: int = 0
    crashes: int = 0
    suspect: bool = False
    poison: bool = False
    first_ms: int = 0

    @property
    def age_ms(self) -> int:
        """How long ago it was first claimed, when this claim was made: claim numbers are times."""
        return self.claim - self.first_ms if self.first_ms else 0


class Finished(msgspec.Struct, frozen=True, gc=False):
    """The terminal record (`contract.record`, encoded) of an index whose frame lies in `run`."""

    index: int
    run: int
    record: bytes


class Returned(msgspec.Struct, frozen=True, gc=False):
    """An index given back unfinished; only the current claim may.

    Attributes:
        index: the request.
        claim: the claim number it was handed out with.
        delay_ms: when it may be claimed again, from now.
        charged: how many attempts since the claim count against the request's allowance.
        missing: its frame or picture was not in the store: the job pauses (store), so a person looks.
    """

    index: int
    claim: int
    delay_ms: int
    charged: int
    missing: bool = False


class SealReply(msgspec.Struct, frozen=True):
    """Attributes: `cursor` is that of the last sealed run (b"" when there is none)."""

    status: SealStatus
    state: JobState
    version: int
    sealed_runs: int = 0
    payload_bytes: int = 0
    payload_mark: int = 0
    cursor: bytes = b""


class CloseReply(msgspec.Struct, frozen=True):
    status: CloseStatus
    state: JobState
    version: int
    sealed_runs: int = 0
    n: int = 0


class ClaimReply(msgspec.Struct, frozen=True):
    """Attributes: `alone`: the setup is unproven, hold the outcomes back; `results_full`: no fresh work until the
    collector has taken results; `suspects`: how many waited for a worker that holds nothing."""

    status: ClaimStatus
    state: JobState
    version: int
    claimed: list[Claimed] = []
    alone: bool = False
    results_full: bool = False
    suspects: int = 0


class CommitReply(msgspec.Struct, frozen=True):
    """Attributes: `new` records kept; `dup` someone had answered before; `stale` returns of a claim that is not held
    any more; `ahead` indices that the store does not know (it lost a suffix); `complete` the job is complete now."""

    status: CommitStatus
    state: JobState
    version: int
    new: int = 0
    dup: int = 0
    stale: int = 0
    ahead: int = 0
    complete: bool = False


class RenewReply(msgspec.Struct, frozen=True):
    """Attributes: `held` how many indices the store says the token holds."""

    status: RenewStatus
    state: JobState
    version: int
    held: int = 0


class ReapReply(msgspec.Struct, frozen=True):
    """Attributes: `moved` indices went back to waiting, `suspects` and `poisoned` of them as such."""

    status: ReapStatus
    version: int
    moved: int = 0
    suspects: int = 0
    poisoned: int = 0


class AckReply(msgspec.Struct, frozen=True):
    """Attributes: `acked` records freed now; `unknown` indices that are not done in the store (it lost a suffix);
    the rest had been acked before."""

    status: AckStatus
    version: int
    acked: int = 0
    unknown: int = 0


class ControlReply(msgspec.Struct, frozen=True):
    status: ControlStatus
    state: JobState
    version: int
    in_flight: int = 0


class LeaseReply(msgspec.Struct, frozen=True):
    """Attributes: `holder` and `expires_in_ms` (0 when it has run out) of whoever has the lease now."""

    granted: bool
    holder: str
    expires_in_ms: int
    version: int


class Lease(msgspec.Struct, frozen=True):
    """A live lease of a feeder or a collector."""

    token: str
    holder: str
    expires_in_ms: int


class JobSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One consistent look at a job. Times are ms of the store's clock, 0 where not yet; bytes as the marks count them.

    Attributes:
        n: number of requests, None until closed.
        prod: requests sealed so far.
        cur: requests handed out at least once; ``prod - cur`` are fresh.
        done: terminal records ever kept, failed ones included.
        waiting: indices in delay, to be redone or suspect.
        attempts: attempts reported by terminal records.
        fed_by: the last feeder's holder, also when its lease has ended; empty before the first.
        feeder_lost: not closed, not ended, a feeder had begun and none is alive.
        cursor: the feeder's place after the last sealed run.
        redelivered: indices taken from a dead or expired worker.
        dup: late answers that were not needed.
        stale: returns of a claim that was no longer held.
        missing: claimed indices whose payload was not there.
        deadline_ms: when the job expires; 0 is never.
        keep_ms: how long it is kept after it has ended and all its results have been collected.
        pool: which daemons may work on it.
        max_in_flight: most requests of it in flight; 0 is unbounded.
        progress_at_ms: when a request last finished, or the job was resumed; 0 is never.
    """

    job: str
    epoch: str
    version: int
    state: JobState
    reason: PauseReason | None
    detail: str
    closed: bool
    n: int | None
    sealed_runs: int
    prod: int
    cur: int
    done: int
    failed: int
    acked: int
    in_flight: int
    waiting: int
    suspects: int
    payload_bytes: int
    results_bytes: int
    payload_mark_bytes: int
    results_mark_bytes: int
    prompt_tokens: int
    completion_tokens: int
    attempts: int
    by_class: dict[FailureClass, int]
    feeder: Lease | None
    feeder_lost: bool
    cursor: bytes
    collector: Lease | None
    redelivered: int
    dup: int
    stale: int
    missing: int
    proven: bool
    created_at_ms: int
    started_at_ms: int
    finished_at_ms: int
    now_ms: int
    deadline_ms: int = 0
    keep_ms: int = 0
    pool: str = ""
    max_in_flight: int = 0
    progress_at_ms: int = 0
    fed_by: str = ""

    @property
    def is_collected(self) -> bool:
        """Every result lies outside by now, and nobody is at it."""
        return self.done == self.acked and self.collector is None

    @property
    def is_late(self) -> bool:
        """The deadline has passed, and answers that came in time have had a moment to arrive."""
        return 0 < self.deadline_ms <= self.now_ms - DEADLINE_GRACE_MS

    @property
    def fresh(self) -> int:
        return self.prod - self.cur

    @property
    def ok(self) -> int:
        return self.done - self.failed
