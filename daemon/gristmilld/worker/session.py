"""One job as one worker sees it: its lease, what it holds, and what waits to be committed.

A token has one queue call in flight at a time (`_turn`), so the store sees this worker's steps in the order in which
it made them. A call whose reply was lost leaves the worker unsure of what it holds: the next turn compares with the
store's own list first and gives back what it does not know. When the store says that the lease is lost (the worker was
stalled, and its requests were given to others), the worker takes a new token; answers that are still under way are
committed all the same, for the first one counts.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec

from gristmill.contract.lifecycle import TERMINAL, JobState, PauseReason
from gristmill.contract.manifest import Manifest
from gristmill.queue.leasequeue import LeaseQueue
from gristmill.queue.replies import Claimed, ClaimReply, ClaimStatus, CommitStatus, RenewStatus, Returned
from gristmill.queue.store import OUTAGES
from gristmilld.clock import Clock
from gristmilld.logs import fields
from gristmilld.meter import WorkerMetrics
from gristmilld.worker.attempt import Outcome, Terms
from gristmilld.worker.commit import MAX_BATCH, CommitBuffer
from gristmilld.worker.sharing import Share
from gristmilld.worker.trial import Trial, Verdict

log = logging.getLogger(__name__)

FIRST_PAUSE_S, PAUSE_GROWTH = 0.02, 1.25
"""Between claims of a job that has nothing to hand out."""


class Taken(msgspec.Struct, frozen=True):
    """A claimed index and its frame, or None where the store does not hold it."""

    claimed: Claimed
    frame: bytes | None


class Session:
    """See the module's head.

    Args:
        queue: of the job.
        manifest: of the job.
        token_prefix: of this worker process; the session adds a number.
        ttl_ms: how long a lease lives without a renewal.
        clock: monotonic.
        meter: counts claims, results and lost leases.
    """

    def __init__(
        self,
        queue: LeaseQueue,
        manifest: Manifest,
        token_prefix: str,
        ttl_ms: int,
        clock: Clock,
        meter: WorkerMetrics,
    ) -> None:
        self._meter = meter
        self.queue = queue
        self.manifest = manifest
        self.terms = Terms.of(manifest)
        self.share = Share(manifest.job, manifest.priority, manifest.weight)
        self.state = JobState.RUNNING
        self.era = 0
        """Goes up when the job runs again."""
        self.recall = asyncio.Event()
        self.next_claim_s = 0.0
        self.suspects = 0
        """How many waited at the last claim for a worker that holds nothing."""
        self._empty_s = 0.0
        self._prefix = token_prefix
        self._ttl_ms = ttl_ms
        self._clock = clock
        self._rotation = 0
        self._leased = False
        self._unsure = False
        self._held: dict[int, int] = {}
        self._buffer = CommitBuffer(clock)
        self._trial: Trial | None = None
        self._pause: str | None = None
        self._turn = asyncio.Lock()
        self.gone = False
        self.abandoned = False
        """Whoever makes the calls has ended those of this job."""

    @property
    def job(self) -> str:
        return self.queue.job

    @property
    def token(self) -> str:
        return f"{self._prefix}.{self._rotation}"

    @property
    def holds(self) -> int:
        """Indices claimed and not yet settled in the store."""
        return len(self._held)

    @property
    def leased(self) -> bool:
        return self._leased

    @property
    def over(self) -> bool:
        """The job has ended or is gone: no answer of it will be taken any more."""
        return self.gone or self.state in TERMINAL

    def is_past(self, era: int) -> bool:
        """Whether a request begun in `era` says nothing of how the job fares: it was paused since, perhaps resumed."""
        return era != self.era or self.state is not JobState.RUNNING

    @property
    def settle_due(self) -> bool:
        """Whether the next round should send what is buffered."""
        return self.pressing or self._buffer.due() or self.queue.rolled_back

    @property
    def pressing(self) -> bool:
        """Whether what is buffered should not even wait for the next round; asked after each request."""
        return self._buffer.full or self._pause is not None or self._frees_a_place or self.in_vain

    @property
    def _frees_a_place(self) -> bool:
        """The job was at its limit in flight: every answer that is committed lets another request begin."""
        return self.manifest.max_in_flight > 0 and self._empty_s > 0 and len(self._buffer) > 0

    @property
    def in_vain(self) -> bool:
        """Nothing of what was claimed for the trial could be sent: it waits for the next requests."""
        return self._trial is not None and not self._trial.waits and len(self._buffer) > 0 and not self.gone

    def object_to(self, reason: str) -> None:
        """This worker can't run the job as it is: pause it with `reason` at the next turn."""
        self._pause = reason

    # -- outcomes -------------------------------------------------------------------------------------------------

    def conclude(self, outcome: Outcome) -> None:
        """Take the outcome of a request; it goes back with the next batch, or is held back while the trial is open."""
        if outcome.pause is not None:
            self._pause = outcome.pause
        if self._trial is None:
            self._enqueue(outcome)
            return
        verdict = self._trial.add(outcome)
        if outcome.pause is not None or verdict is Verdict.FAILED:
            self._pause = outcome.pause or self._trial.diagnosis()
            self._end_trial(commit=False)
        elif verdict is Verdict.PASSED:
            self._end_trial(commit=True)

    def conclude_at_once(self, outcome: Outcome) -> None:
        """Take an outcome that no call was made for (a refusal, a missing payload): it says nothing to the trial."""
        self._enqueue(outcome)

    def _end_trial(self, *, commit: bool) -> None:
        assert self._trial is not None
        for outcome in self._trial.held_back:
            self._enqueue(outcome if commit or outcome.ok else outcome.uncharged())
        self._trial = None

    def _enqueue(self, outcome: Outcome) -> None:
        if outcome.record is not None:
            self._meter.settled(outcome.endpoint, outcome.record)
            self._buffer.finish(outcome.finished())
        else:
            self._buffer.give_back(outcome.returned())

    def withdraw_trial(self) -> None:
        """The worker is leaving: what the trial holds back returns to the queue as if it had not been tried."""
        if self._trial is not None:
            self._end_trial(commit=False)

    # -- turns with the store -------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Commit all that is buffered, and pause the job if its outcomes ask for it.

        Raises:
            One of `OUTAGES`: the store did not answer; nothing is lost, call again.
        """
        async with self._turn:
            if self.queue.rolled_back:
                self._after_rollback()
            while not self.gone and (batch := self._buffer.peek()):
                begun_s = self._clock()
                reply = await self.queue.commit(self.token, batch.finished, batch.returned)
                self._buffer.drop(batch)
                self._meter.committed(
                    took_s=self._clock() - begun_s,
                    returned=len(batch.returned),
                    new=reply.new,
                    dup=reply.dup,
                    stale=reply.stale,
                    ahead=reply.ahead,
                )
                for index in batch.indices():
                    self._held.pop(index, None)
                if reply.status is CommitStatus.GONE:
                    self._vanish()
                else:
                    self._note(reply.state)
                    if self.manifest.max_in_flight:
                        self.next_claim_s = self._empty_s = 0.0  # there is room for others now
            if self._pause is not None and not self.gone:
                await self.queue.pause(PauseReason.CONFIG, self._pause)
                self._pause = None
                self.recall.set()
                self.state = JobState.PAUSED

    async def claim(
        self, want: int, max_bytes: int, *, suspects: bool, only_suspects: bool = False, company: int = 1000
    ) -> list[Taken]:
        """Claim up to `want` indices and fetch their frames; fewer, or none, when the job has no more for now.

        Args:
            want: free slots, at least 1.
            max_bytes: free bytes; at least one index is claimed all the same.
            suspects: this worker holds nothing at all, so requests that may have killed others can run apart.
            only_suspects: ask for nothing else.
            company: most suspects at a time.

        Raises:
            One of `OUTAGES`: the store did not answer; what it may have given is found at the next turn.
        """
        async with self._turn:
            if self._unsure:
                await self._reconcile()
            self._unsure = True  # until the reply is here
            reply = await self.queue.claim(
                self.token,
                min(want, 1000),
                max_bytes,
                self._ttl_ms,
                believed=self._leased,
                suspects=suspects,
                only_suspects=only_suspects,
                company=company,
            )
            self._unsure = False
            self.suspects = 0 if reply.claimed and reply.claimed[0].suspect else reply.suspects
            self._learn(reply)
            if reply.status is not ClaimStatus.OK:
                return []
            self._meter.claimed(len(reply.claimed))
            for one in reply.claimed:
                self._held[one.index] = one.claim
            if reply.alone:
                self._trial = self._trial or Trial(self.manifest.first_alone)
            return await self._fetch(reply.claimed)

    async def _fetch(self, claimed: list[Claimed]) -> list[Taken]:
        """Frames of what was just claimed; an outage gives the claims back, for no task will run them."""
        try:
            frames = await self.queue.fetch(claimed)
        except OUTAGES:
            for one in claimed:
                self._enqueue(Outcome(one))
            raise
        return [Taken(c, f) for c, f in zip(claimed, frames, strict=True)]

    def claimed(self, now_s: float, *, found: bool, longest_s: float) -> None:
        """Note when to claim next: at once where there was something, later and later where there was nothing.

        The pauses grow by a quarter, so that what comes is seen after a quarter of the time that it was waited for.
        """
        self._empty_s = 0.0 if found else min(longest_s, self._empty_s * PAUSE_GROWTH or FIRST_PAUSE_S)
        self.next_claim_s = now_s + self._empty_s

    def on_trial(self, count: int) -> None:
        """`count` of the requests just claimed are really sent, alone."""
        if self._trial is not None:
            self._trial.expect(count)

    def _learn(self, reply: ClaimReply) -> None:
        if reply.status is ClaimStatus.OK:
            self._leased = True
        elif reply.status is ClaimStatus.LOST:
            self._rotate()
        elif reply.status is ClaimStatus.GONE:
            self._vanish()
            return
        self._note(reply.state)

    def _rotate(self) -> None:
        log.warning("lease lost, its requests go to other workers", extra=fields(job=self.job, held=len(self._held)))
        self._meter.lease_lost()
        self._rotation += 1
        self._leased = False
        self._held.clear()

    def _vanish(self) -> None:
        self.gone = True
        self.recall.set()

    def _note(self, state: JobState) -> None:
        """Act on the job's state, which every reply carries."""
        if state is self.state:
            return
        log.info("job is %s", state.value, extra=fields(job=self.job))
        self.state = state
        if state is JobState.RUNNING:
            self.era += 1
            self.recall.clear()
        else:
            self.recall.set()

    async def renew(self, queue: LeaseQueue) -> None:
        """Renew the lease through `queue`, which has its own connection; the next turn looks into differences."""
        if not self._leased or self.gone:
            return
        token, held = self.token, len(self._held)
        reply = await queue.renew(token, self._ttl_ms)
        if token != self.token:
            return
        if reply.status is RenewStatus.LOST:
            self._rotate()
        elif reply.status is RenewStatus.GONE:
            self._vanish()
        else:
            self._note(reply.state)
            self._unsure = self._unsure or (reply.held != held and held == len(self._held))

    async def _reconcile(self) -> None:
        """Give back what the store says we hold and we know nothing of; forget what it says we don't."""
        held = await self.queue.held(self.token)
        strays = {i: n for i, n in held.items() if self._held.get(i) != n}
        if strays:
            log.info("giving back requests of a lost reply", extra=fields(job=self.job, count=len(strays)))
        returns = [Returned(index, number, 0, charged=0) for index, number in strays.items()]
        for start in range(0, len(returns), MAX_BATCH):
            await self.queue.commit(self.token, (), returns[start : start + MAX_BATCH])
        self._unsure = False

    def _after_rollback(self) -> None:
        log.warning("the store lost its last writes: sending recent results again", extra=fields(job=self.job))
        self._buffer.replay()
        self._unsure = True
        self.queue.rolled_back = False

    async def leave(self) -> None:
        """Settle, give up the lease and what it still holds.

        Raises:
            One of `OUTAGES`: call again, or leave it to the lease's end.
        """
        await self.settle()
        async with self._turn:
            if self._leased and not self.gone:
                await self.queue.reap(self.token, force=True, crashed=False)
                self._leased = False
