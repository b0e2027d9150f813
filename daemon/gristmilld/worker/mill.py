"""The worker's loop: claim as many requests as there are free slots, run each, send back what came of it.

There is no backlog but the few requests that will begin within milliseconds (`lanes`), so nothing waits here while
another worker is idle, and a dead worker takes little with it that was not really in flight. The pump below is the one
place that talks to the store about requests; request tasks only leave their outcome with their session and ring the
bell.

A request's life here: claimed -> frame decoded -> body made -> called until it has an outcome (`attempt`) -> outcome
buffered (`session`) -> committed. A crash at any point leaves the index held by a dead token, which is reaped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress

from gristmill.contract import frame as frames
from gristmill.contract.frame import FormatError, Request
from gristmill.queue.replies import Claimed
from gristmill.queue.store import OUTAGES
from gristmilld.clock import Clock
from gristmilld.logs import fields
from gristmilld.meter import WorkerMetrics
from gristmilld.worker.attempt import Caller, Outcome, broken, overdue, poisoned, refuse
from gristmilld.worker.lanes import Lanes, Work
from gristmilld.worker.payload import Payloads
from gristmilld.worker.roster import Roster
from gristmilld.worker.running import outcome_of
from gristmilld.worker.session import Session, Taken
from gristmilld.worker.sharing import Sharing
from gristmilld.worker.ward import Ward, WardLostError

log = logging.getLogger(__name__)

TICK_S = 0.02
"""The pump goes round this often: claims and commits gather for so long."""
STARVED_SHARE = 0.25
"""With so many slots free and nothing to run, it goes round at once."""
IDLE_TICK_S = 0.05
EMPTY_BACKOFF_S = 0.2
"""Longest pause between claims of a job that had nothing to hand out."""
OUTAGE_BACKOFF_S = 1.0
SUSPECTS_PATIENCE_S = 10.0
"""So long may suspects wait for a worker that has nothing to do; then one becomes idle for them."""
IN_VAIN_S = 0.5
"""So long in one go does a worker look for a request of a job that can be sent, before it turns to its others."""


class Mill:
    """See the module's head.

    Args:
        roster: the jobs to work on.
        payloads: makes bodies.
        caller: makes calls.
        slots: most requests in flight.
        max_bytes: most bytes of text in flight; pictures have their own gate (`payload`).
        clock: monotonic.
        meter: counts outages of the store.
        quarantine: when all workers are busy for long, this one becomes idle for suspects; one of a daemon is enough.
        ward: runs lone suspects in processes of their own; without one they are run here.
    """

    def __init__(
        self,
        roster: Roster,
        payloads: Payloads,
        caller: Caller,
        *,
        slots: int,
        max_bytes: int,
        clock: Clock,
        meter: WorkerMetrics,
        quarantine: bool = True,
        ward: Ward | None = None,
    ) -> None:
        self._meter = meter
        self._quarantine = quarantine
        self._ward = ward
        self._suspects_since_s: float | None = None
        self._roster = roster
        self._payloads = payloads
        self._caller = caller
        self._lanes = Lanes(slots, self._run)
        # the first crash may have had a whole buffer of answers in its company: halve from the slots on at the latest
        self._company = max(1, slots // 2)
        self._starved = max(1, int(slots * STARVED_SHARE))
        self._max_bytes = max_bytes
        self._clock = clock
        self._sharing = Sharing()
        self._alone = False
        self._bell = asyncio.Event()
        self._last_claim_s = 0.0
        self._outage_s = 0.0
        self._stopping = False
        self._beat_s = clock()

    @property
    def heart_age_s(self) -> float:
        """Seconds since the pump last went round."""
        return self._clock() - self._beat_s

    @property
    def in_flight(self) -> int:
        return self._lanes.in_flight

    @property
    def text_bytes(self) -> int:
        """Bytes of text in flight."""
        return self._lanes.text_bytes

    # -- the pump -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Claim, dispatch and settle until `stop` is called; then return at once, with requests still in flight."""
        while not self._stopping:
            await self.turn()
            await self._rest()

    async def turn(self) -> None:
        """One round: look for jobs, send back what is due, claim for free slots. Outages are waited out."""
        self._beat_s = self._clock()
        try:
            self._abandon_ended()
            if not self._stopping:
                await self._roster.refresh()
            for session in list(self._roster.sessions.values()):
                if session.settle_due or (self._stopping and session.holds):
                    await session.settle()
            if not self._stopping:
                await self._fill()
        except OUTAGES as error:
            if not self._outage_s:
                log.warning("the store does not answer, waiting for it: %s", type(error).__name__)
            self._outage_s = min(OUTAGE_BACKOFF_S, self._outage_s * 2 or 0.05)
            self._meter.store_outage()
            return
        if self._outage_s:
            log.info("the store answers again")
            self._outage_s = 0.0

    def _abandon_ended(self) -> None:
        """Calls of jobs that have ended would only keep slots."""
        for session in self._roster.sessions.values():
            if session.over and not session.abandoned:
                session.abandoned = True
                count = self._lanes.abandon(session)
                if count:
                    log.info("calls of a job that has ended are cut", extra=fields(job=session.job, count=count))

    async def _fill(self) -> None:
        """Claim for what is free, of the jobs that may have something, by priority and weight."""
        now_s = self._clock()
        room = self._room(now_s)
        ready = {job: s for job, s in self._roster.sessions.items() if now_s >= s.next_claim_s}
        if room <= 0 or not ready or self._makes_way(now_s):
            return
        if len(ready) > 1 and self._holds_nothing():  # a single job is asked for its suspects with everything else
            for session in ready.values():
                if await self._claim(session, room, only_suspects=True):
                    return
        turn = self._sharing.round((s.share for s in ready.values()), room)
        while not self._alone and self._lanes.text_bytes < self._max_bytes and (grant := turn.offer()):
            turn.took(await self._claim(ready[grant.job], grant.slots))
        for session in ready.values():
            await self._go_past_refusals(session)

    async def _go_past_refusals(self, session: Session) -> None:
        """Find a request for the trial that can be sent, however many before it can't.

        A trial gets a few at a time: with a pause after each of them, a million bad lines would take it hours.
        """
        until_s = self._clock() + IN_VAIN_S
        while session.in_vain and self._clock() < until_s:
            await session.settle()
            await self._claim(session, max(1, self._lanes.free))
        if session.in_vain:
            self._bell.set()

    def _makes_way(self, now_s: float) -> bool:
        """Whether to claim nothing until this worker holds nothing, for the sake of suspects that wait for that."""
        if not self._quarantine or not any(s.suspects for s in self._roster.sessions.values()):
            self._suspects_since_s = None
            return False
        if self._suspects_since_s is None:
            self._suspects_since_s = now_s
        return now_s - self._suspects_since_s >= SUSPECTS_PATIENCE_S and not self._holds_nothing()

    async def _claim(self, session: Session, slots: int, *, only_suspects: bool = False) -> int:
        """Claim up to `slots` requests of one job and start them; how many there were."""
        max_bytes = max(1, self._max_bytes - self._lanes.text_bytes)
        taken = await session.claim(
            slots, max_bytes, suspects=self._holds_nothing(), only_suspects=only_suspects, company=self._company
        )
        self._last_claim_s = now_s = self._clock()
        session.claimed(now_s, found=bool(taken), longest_s=EMPTY_BACKOFF_S)
        self._dispatch(session, taken)
        return len(taken)

    def _room(self, now_s: float) -> int:
        """How many requests to claim now; none while there is neither need nor reason."""
        if self._alone:
            self._alone = not self._holds_nothing()
        if self._alone or self._lanes.text_bytes >= self._max_bytes:
            return 0
        if now_s - self._last_claim_s < TICK_S and not self._starving():
            return 0
        return self._lanes.room(now_s)

    def _starving(self) -> bool:
        return self._lanes.starved and self._lanes.free >= self._starved

    def _holds_nothing(self) -> bool:
        return not self._lanes.in_flight and not any(s.holds for s in self._roster.sessions.values())

    async def _rest(self) -> None:
        """Sleep until something rings, or a tick has passed."""
        wait_s = self._outage_s or (TICK_S if self._roster.sessions else IDLE_TICK_S)
        self._bell.clear()
        tick = asyncio.get_running_loop().call_later(wait_s, self._bell.set)
        try:
            await self._bell.wait()
        finally:
            tick.cancel()

    # -- from a claim to tasks ------------------------------------------------------------------------------------

    def _dispatch(self, session: Session, taken: Iterable[Taken]) -> None:
        works = [Work(session, *pair) for one in taken if (pair := self._open(session, one))]
        session.on_trial(len(works))
        for work in works:
            if work.request.images:
                self._payloads.expect(session.queue, work.claimed.run, work.request)
        self._lanes.add(works)

    def _open(self, session: Session, taken: Taken) -> tuple[Claimed, Request] | None:
        """The request of a claimed frame; None when its outcome is known without a call."""
        claimed = taken.claimed
        self._alone = self._alone or claimed.suspect
        if taken.frame is None:
            session.conclude_at_once(Outcome(claimed, missing=True))
            return None
        try:
            frame = frames.decode(taken.frame)
        except FormatError as error:
            log.warning("a request is given back: %s", error, extra=fields(job=session.job, index=claimed.index))
            session.conclude_at_once(Outcome(claimed, delay_s=10.0))
            return None
        if not isinstance(frame, Request):
            session.conclude_at_once(refuse(claimed, frame))
            return None
        if claimed.poison:
            session.conclude_at_once(poisoned(claimed, frame))
            return None
        if session.terms.left_s(claimed) <= 0:
            session.conclude_at_once(overdue(claimed, frame, session.terms))
            return None
        return claimed, frame

    # -- one request ----------------------------------------------------------------------------------------------

    async def _run(self, work: Work) -> None:
        session, claimed, request = work
        era = session.era
        try:
            outcome = await self._outcome(session, claimed, request)
        except asyncio.CancelledError:
            outcome = Outcome(claimed)  # put back, uncharged: the worker is leaving
        except Exception as error:  # noqa: BLE001 - whatever it is, the request must get its outcome
            outcome = broken(claimed, request, session.terms, error)
        if outcome.pause is not None and session.is_past(era):
            outcome = outcome.uncharged()  # what it met may be mended by now
        session.conclude(outcome)
        if session.pressing or self._starving():
            self._bell.set()

    async def _outcome(self, session: Session, claimed: Claimed, request: Request) -> Outcome:
        if session.recall.is_set():
            return Outcome(claimed)
        if self._ward is not None and claimed.suspect and session.holds == 1:
            with suppress(WardLostError):
                outcome = await self._ward.run(session.job, claimed, session.recall)
                return poisoned(claimed, request) if outcome is None else outcome
        return await outcome_of(
            self._caller, self._payloads, session.queue, claimed, request, session.terms, session.recall
        )

    # -- the end --------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Claim nothing more; requests that have not begun, or only wait, return to the queue."""
        self._stopping = True
        for session in self._roster.sessions.values():
            session.recall.set()
        for work in self._lanes.take_back():
            work.session.conclude(Outcome(work.claimed))
        self._bell.set()

    async def drain(self, budget_s: float) -> None:
        """After `stop`: let what is in flight end within `budget_s`, put the rest back, and give up the leases."""
        deadline_s = self._clock() + budget_s
        while self._lanes.in_flight and self._clock() < deadline_s:
            await self.turn()
            await self._lanes.wait(0.05)
        put_back = await self._lanes.cancel()
        if put_back:
            log.info("requests in flight were put back", extra=fields(count=put_back))
        for session in self._roster.sessions.values():
            session.withdraw_trial()
            try:
                await session.leave()
            except OUTAGES as error:
                log.warning("the store did not answer, the lease will run out: %s", type(error).__name__)
