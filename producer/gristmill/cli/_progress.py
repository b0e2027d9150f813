"""What progress says, as values: rates over a window, the time left, the phase and what is being waited for. Pure.

A stalled run must not look like a slow one: when nothing finishes for a while, the phase names what is waited for.
Counts of *finished* lines include those carried over from an earlier run; rates do not.
"""

from __future__ import annotations

from collections import deque
from enum import StrEnum

import msgspec

WINDOW_S = 30.0
"""Rates are means over this long: short enough to follow, long enough for slow answers."""

ALONE = 4
"""The first requests of a job go out alone: their pace says nothing of the others'."""

STALL_S = 10.0
"""Without a finished request for so long, a run is worth an explanation."""


class Phase(StrEnum):
    STARTING = "starting"
    FEEDING = "feeding"
    RUNNING = "running"
    WAITING = "waiting"
    STRAGGLERS = "stragglers"
    DRAINING = "draining"
    PAUSED = "paused"
    CANCELLING = "cancelling"
    FINALIZING = "finalizing"
    DONE = "done"


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """One look at the job.

    Attributes:
        at_s: monotonic clock.
        ok, failed: terminal records.
        carried: lines that an earlier run had finished.
        total: all lines, carried ones included; None while it is not known.
        guessed_total: an estimate from the share of the input that has been read.
        fed: lines that lie in the store or are carried.
        in_flight, waiting: requests.
        tokens: prompt and completion tokens of all records.
        state: the job's state.
        trouble: what is known to stand in the way, such as an endpoint that is down; empty when nothing is.
        draining: the user asked for an early end.
        finalizing: everything is in, OUT is being completed.
    """

    at_s: float
    ok: int = 0
    failed: int = 0
    carried: int = 0
    total: int | None = None
    guessed_total: int | None = None
    fed: int = 0
    in_flight: int = 0
    waiting: int = 0
    tokens: int = 0
    state: str = "running"
    trouble: str = ""
    draining: bool = False
    finalizing: bool = False

    @property
    def finished(self) -> int:
        return self.ok + self.failed

    @property
    def left(self) -> int | None:
        """Lines that have no result yet; None while the total is not known."""
        total = self.total if self.total is not None else self.guessed_total
        return None if total is None else max(0, total - self.carried - self.finished)


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What is shown."""

    elapsed_s: float
    done: int
    """Lines with a result, carried ones included."""
    failed: int
    total: int | None
    is_guess: bool
    in_flight: int
    requests_per_s: float
    tokens_per_s: float
    eta_s: float | None
    phase: Phase
    waiting_for: str

    @property
    def share(self) -> float | None:
        return None if not self.total else min(1.0, self.done / self.total)


class Meter:
    """Turns a series of `Facts` into `View`s."""

    def __init__(self, start_s: float) -> None:
        self._start_s = start_s
        self._window: deque[Facts] = deque()
        self._last_finish_s = start_s
        self._last_finished = 0

    def view(self, facts: Facts) -> View:
        """The view after one more look; looks come in the order of `at_s`."""
        self._remember(facts)
        first = self._window[0]
        span_s = facts.at_s - first.at_s
        rate = (facts.finished - first.finished) / span_s if span_s > 0 else 0.0
        token_rate = (facts.tokens - first.tokens) / span_s if span_s > 0 else 0.0
        phase, waiting_for = phase_of(facts, self.stalled_s(facts.at_s))
        return View(
            elapsed_s=facts.at_s - self._start_s,
            done=facts.carried + facts.finished,
            failed=facts.failed,
            total=facts.total if facts.total is not None else facts.guessed_total,
            is_guess=facts.total is None,
            in_flight=facts.in_flight,
            requests_per_s=max(0.0, rate),
            tokens_per_s=max(0.0, token_rate),
            eta_s=facts.left / rate if facts.left and rate > 0 and phase != Phase.STRAGGLERS else None,
            phase=phase,
            waiting_for=waiting_for,
        )

    def stalled_s(self, now_s: float) -> float:
        """For how long nothing has finished."""
        return now_s - self._last_finish_s

    def _remember(self, facts: Facts) -> None:
        if facts.finished != self._last_finished:
            self._last_finished, self._last_finish_s = facts.finished, facts.at_s
        if facts.finished <= ALONE:
            self._window.clear()
        self._window.append(facts)
        while len(self._window) > 2 and self._window[1].at_s <= facts.at_s - WINDOW_S:
            self._window.popleft()


def phase_of(facts: Facts, stalled_s: float) -> tuple[Phase, str]:
    """The phase and what is being waited for (empty when all goes well)."""
    if facts.finalizing:
        return Phase.FINALIZING, "OUT to be completed and checked"
    if facts.draining:
        return Phase.DRAINING, f"{_requests(facts.in_flight)} in flight"
    if facts.state in {"complete", "cancelled", "expired"}:
        return Phase.DONE, ""
    if facts.state in {"paused", "cancelling"}:
        return Phase(facts.state), f"{_requests(facts.in_flight)} in flight" if facts.in_flight else ""
    return _working_phase(facts, stalled_s)


def _working_phase(facts: Facts, stalled_s: float) -> tuple[Phase, str]:
    if facts.trouble:
        return Phase.WAITING, facts.trouble
    if facts.in_flight == 0 and facts.finished == 0:
        return (Phase.FEEDING, "the first requests") if facts.fed == 0 else (Phase.STARTING, "the workers")
    if _only_stragglers(facts):
        last = "request" if facts.in_flight == 1 else _requests(facts.in_flight)
        return Phase.STRAGGLERS, f"the last {last}{_since(stalled_s)}"
    if stalled_s >= STALL_S:
        what = f"answers to {_requests(facts.in_flight)}" if facts.in_flight else "the workers"
        return Phase.WAITING, what + _since(stalled_s)
    return (Phase.FEEDING if facts.total is None else Phase.RUNNING), ""


def _only_stragglers(facts: Facts) -> bool:
    """Everything left is in flight, and that is a small share of the job."""
    left = facts.left
    return facts.total is not None and left is not None and 0 < left <= facts.in_flight and left * 20 <= facts.total


def _since(stalled_s: float) -> str:
    return f", none for {stalled_s:.0f} s" if stalled_s >= STALL_S else ""


def _requests(n: int) -> str:
    return "1 request" if n == 1 else f"{n:,} requests"
