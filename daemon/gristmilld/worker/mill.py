"""The worker's loop: claim as many requests as there are free slots, run each, send back what came of it.

There is no backlog: what is claimed is started at once, so nothing waits here while another worker is idle, and a dead
worker takes nothing with it that was not really in flight. The pump below is the one place that talks to the store
about requests; request tasks only leave their outcome with their session and ring the bell.

A request's life here: claimed -> frame decoded -> body made -> called until it has an outcome (`attempt`) -> outcome
buffered (`session`) -> committed. A crash at any point leaves the index held by a dead token, which is reaped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from functools import partial

from gristmill.contract import frame as frames
from gristmill.contract.frame import FormatError, Request
from gristmill.queue.replies import Claimed
from gristmill.queue.store import OUTAGES
from gristmilld.clock import Clock
from gristmilld.logs import fields
from gristmilld.meter import WorkerMetrics
from gristmilld.worker.attempt import Caller, Outcome, broken, poisoned, refuse
from gristmilld.worker.payload import PayloadGoneError, Payloads
from gristmilld.worker.roster import Roster
from gristmilld.worker.session import Session, Taken

log = logging.getLogger(__name__)

REFILL_AFTER_S = 0.02
"""Free slots wait no longer than this for more of them to join in one claim."""
REFILL_SHARE = 0.02
TICK_S = 0.02
IDLE_TICK_S = 0.05
EMPTY_BACKOFF_S = 0.2
"""Longest pause between claims of a job that had nothing to hand out."""
OUTAGE_BACKOFF_S = 1.0


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
    ) -> None:
        self._meter = meter
        self._roster = roster
        self._payloads = payloads
        self._caller = caller
        self._slots = slots
        self._max_bytes = max_bytes
        self._clock = clock
        self._refill = max(1, int(slots * REFILL_SHARE))
        self._free_slots = slots
        self._bytes = 0
        self._alone = False
        self._bell = asyncio.Event()
        self._last_claim_s = 0.0
        self._outage_s = 0.0
        self._stopping = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._beat_s = clock()

    @property
    def heart_age_s(self) -> float:
        """Seconds since the pump last went round."""
        return self._clock() - self._beat_s

    @property
    def in_flight(self) -> int:
        return len(self._tasks)

    @property
    def text_bytes(self) -> int:
        """Bytes of text in flight."""
        return self._bytes

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
            if not self._stopping:
                await self._roster.refresh()
            for session in list(self._roster.sessions.values()):
                await self._serve_session(session)
            self._outage_s = 0.0
        except OUTAGES as error:
            self._outage_s = min(OUTAGE_BACKOFF_S, self._outage_s * 2 or 0.05)
            self._meter.store_outage()
            log.warning("the store does not answer, waiting for it: %s", type(error).__name__)

    async def _serve_session(self, session: Session) -> None:
        if session.settle_due or (self._stopping and session.holds):
            await session.settle()
        now_s = self._clock()
        if self._stopping or not self._may_claim(now_s) or now_s < session.next_claim_s:
            return
        idle = not self._tasks and not any(s.holds for s in self._roster.sessions.values())
        taken = await session.claim(self._free_slots, max(1, self._max_bytes - self._bytes), suspects=idle)
        self._last_claim_s = now_s = self._clock()
        session.claimed(now_s, found=bool(taken), longest_s=EMPTY_BACKOFF_S)
        self._dispatch(session, taken)

    def _may_claim(self, now_s: float) -> bool:
        """Whether there is room: slots (a few at a time, or what there is after a while) and bytes."""
        if self._alone:
            self._alone = bool(self._tasks) or any(s.holds for s in self._roster.sessions.values())
        if self._alone or not self._free_slots or self._bytes >= self._max_bytes:
            return False
        return self._free_slots >= self._refill or now_s - self._last_claim_s >= REFILL_AFTER_S

    async def _rest(self) -> None:
        """Sleep until something rings, or a tick has passed."""
        wait_s = self._outage_s or (TICK_S if self._roster.sessions else IDLE_TICK_S)
        self._bell.clear()
        try:
            async with asyncio.timeout(wait_s):
                await self._bell.wait()
        except TimeoutError:
            return

    # -- from a claim to tasks ------------------------------------------------------------------------------------

    def _dispatch(self, session: Session, taken: Iterable[Taken]) -> None:
        requests = [pair for one in taken if (pair := self._open(session, one))]
        if not requests:
            return
        session.on_trial(len(requests))
        for claimed, request in requests:
            self._free_slots -= 1
            self._bytes += request.text_bytes
            task = asyncio.create_task(self._run(session, claimed, request))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

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
        return claimed, frame

    # -- one request ----------------------------------------------------------------------------------------------

    async def _run(self, session: Session, claimed: Claimed, request: Request) -> None:
        try:
            outcome = await self._outcome(session, claimed, request)
        except asyncio.CancelledError:
            outcome = Outcome(claimed)  # put back, uncharged: the worker is leaving
        except Exception as error:  # noqa: BLE001 - whatever it is, the request must get its outcome
            outcome = broken(claimed, request, session.terms, error)
        self._free_slots += 1
        self._bytes -= request.text_bytes
        session.conclude(outcome)
        if self._free_slots == self._refill or session.batch_full or session.settle_due:
            self._bell.set()

    async def _outcome(self, session: Session, claimed: Claimed, request: Request) -> Outcome:
        try:
            load = partial(self._payloads.body, session.queue, claimed.run, request)
            return await self._caller.run(claimed, request, load, session.terms, session.recall)
        except PayloadGoneError as error:
            log.warning("a picture is not in the store: %s", error, extra=fields(job=session.job, index=claimed.index))
            return Outcome(claimed, missing=True)
        except OUTAGES:
            return Outcome(claimed, delay_s=1.0)  # its pictures could not be fetched

    # -- the end --------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Claim nothing more; requests that only wait return to the queue."""
        self._stopping = True
        for session in self._roster.sessions.values():
            session.recall.set()
        self._bell.set()

    async def drain(self, budget_s: float) -> None:
        """After `stop`: let what is in flight end within `budget_s`, put the rest back, and give up the leases."""
        deadline_s = self._clock() + budget_s
        while self._tasks and self._clock() < deadline_s:
            await self.turn()
            await asyncio.wait(self._tasks, timeout=0.05)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            log.info("putting back requests in flight", extra=fields(count=len(self._tasks)))
            await asyncio.wait(self._tasks)
        for session in self._roster.sessions.values():
            session.withdraw_trial()
            try:
                await session.leave()
            except OUTAGES as error:
                log.warning("the store did not answer, the lease will run out: %s", type(error).__name__)
