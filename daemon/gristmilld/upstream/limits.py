"""PURE: how much one endpoint may be given now, as a function of what came back. Times are monotonic seconds.

Three mechanisms, each with its own cause:

- **Cool-down** after 429 (or a Retry-After of an overloaded server): nothing is sent until it has passed. It doubles
  from `COOL_BASE_S` to `COOL_CAP_S` with each cohort that is refused again; Retry-After is the floor.
- **Limit** (additive increase, multiplicative decrease) after overload: halved, at most once per *cohort*, which is
  everything in flight when it was last halved; otherwise one bad moment of 256 requests would halve it eight times.
  While it is used, it grows by one per good answer up to the last level that worked, then by one per round of answers.
- **Breaker** after `DOWN_AFTER` connects failed in a row, or `BROKEN_AFTER` answers in a row were 5xx at the smallest
  limit: nothing is sent for a time that doubles from `OPEN_BASE_S` to `OPEN_CAP_S`; then one request is let through as
  a probe. Its answer closes the breaker, its failure opens it again. As an answer may take minutes, another probe is
  let through each `PROBE_EVERY_S` while the first is out.

A 5xx alone is the request's own trouble. Many of them, mostly nothing else, are overload, which costs no attempt; but
at a limit of one, load cannot be the cause, so there each one counts. Hence nothing is retried for free for ever.
"""

from __future__ import annotations

from collections import deque
from enum import Enum, auto

import msgspec

from gristmill.contract.failure import Failure, FailureClass
from gristmilld.upstream.outcome import Clock, FailedCall

COOL_BASE_S = 1.0
COOL_CAP_S = 60.0
OPEN_BASE_S = 1.0
OPEN_CAP_S = 30.0
PROBE_EVERY_S = 12.0
DOWN_AFTER = 3
BROKEN_AFTER = 5
BURST_WINDOW_S = 10.0
BURST_MIN = 8
"""So many 5xx within the window, and as many good answers at most, make a burst."""


class _Kind(Enum):
    """What a failure says of the endpoint."""

    NO_CONNECTION = auto()
    RATE_LIMITED = auto()
    OVERLOADED = auto()
    SERVER_ERROR = auto()
    SILENCE = auto()
    ANSWERED = auto()


def _kind(failure: Failure) -> _Kind:
    match failure.cls:
        case FailureClass.ENDPOINT_DOWN:
            return _Kind.NO_CONNECTION
        case FailureClass.TIMEOUT if isinstance(failure, FailedCall) and failure.clock is Clock.CONNECT:
            return _Kind.NO_CONNECTION
        case FailureClass.RATE_LIMITED:
            return _Kind.RATE_LIMITED
        case FailureClass.OVERLOADED:
            return _Kind.OVERLOADED
        case FailureClass.TRANSIENT if (failure.status_code or 0) >= 500:
            return _Kind.SERVER_ERROR
    return _Kind.ANSWERED if failure.status_code else _Kind.SILENCE


class Pass(msgspec.Struct):
    """One call that was let through: the cohort it belongs to, and whether it is the breaker's probe."""

    cohort: int
    probe: bool


class Limits:
    """The state of one endpoint; `outstanding` is the number of its calls in flight."""

    __slots__ = ("_broken", "_burst", "_cohort", "_cool_streak", "_down", "_good_since_shrink", "_last_bad_s",
                 "_open_streak", "_peak", "_probe_until_s", "_round", "_threshold", "ceiling", "cool_until_s",
                 "heeding", "limit", "open_until_s", "outstanding")  # fmt: skip

    def __init__(self, ceiling: int = 0) -> None:
        self.ceiling: float = ceiling or float("inf")
        self.limit: float = self.ceiling
        self.outstanding = 0
        self.cool_until_s = 0.0
        self.heeding = False
        """Whether the cool-down is what another worker was told, not this one."""
        self.open_until_s: float | None = None
        """When the breaker is open: from when on a probe may go; None when it is closed."""
        self._cohort = 0
        self._cool_streak = 0
        self._open_streak = 0
        self._down = 0
        self._broken = 0
        self._probe_until_s = 0.0
        self._threshold = self.ceiling
        self._good_since_shrink = True
        self._peak = 0
        self._round = 0
        self._burst: deque[tuple[float, bool]] = deque()
        self._last_bad_s = 0.0

    # -- before a call --------------------------------------------------------------------------------------------

    @property
    def held_back(self) -> bool:
        """Whether a cool-down or the breaker was set and has not been cleared by a good answer."""
        return self.open_until_s is not None or self.cool_until_s > 0.0

    def ready(self, now_s: float) -> bool:
        """Whether a call may begin now."""
        return self.outstanding < self.limit and (not self.held_back or self.ready_in_s(now_s) <= 0.0)

    def ready_in_s(self, now_s: float) -> float:
        """Seconds until cool-down and breaker let a call through; 0 when they do now (the limit may still be full)."""
        until_s = self.cool_until_s
        if self.open_until_s is not None:
            until_s = max(until_s, self.open_until_s, self._probe_until_s)
        return max(0.0, until_s - now_s)

    def begin(self, now_s: float) -> Pass:
        """Count a call as in flight."""
        self.outstanding += 1
        if self.outstanding > self._peak:
            self._peak = self.outstanding
        probe = self.open_until_s is not None
        if probe:
            self._probe_until_s = now_s + PROBE_EVERY_S
        return Pass(self._cohort, probe)

    # -- after a call ---------------------------------------------------------------------------------------------

    def abandoned(self, call: Pass) -> None:
        """The call ended without an outcome (cancelled, or lost its lease): it says nothing of the endpoint."""
        self.outstanding -= 1
        self._silence(call)

    def good(self, call: Pass, now_s: float) -> None:
        """The server answered, be it with a refusal that is the request's own fault."""
        self.outstanding -= 1
        self._down = self._broken = 0
        if self._burst:
            self._note_good(now_s)
        if self.open_until_s is not None:
            self._close()
        if call.cohort == self._cohort:
            self._recover(now_s)

    def failed(self, call: Pass, failure: Failure, now_s: float) -> Failure:
        """Take in a failure.

        Returns:
            The failure as the endpoint's state explains it: a 5xx that is part of a burst is `overloaded`, a connect
            that timed out while nothing else connects either is `endpoint_down`. Both cost no attempt.
        """
        match _kind(failure):
            case _Kind.NO_CONNECTION:
                failure = self._connect_failed(call, failure, now_s)
            case _Kind.RATE_LIMITED:
                self._rate_limited(call, failure, now_s)
            case _Kind.OVERLOADED:
                self._overloaded(call, failure, now_s)
            case _Kind.SERVER_ERROR:
                failure = self._server_error(call, failure, now_s)
            case _Kind.SILENCE:
                self._silence(call)
            case _Kind.ANSWERED:
                self.good(call, now_s)
                return failure
        self.outstanding -= 1
        return failure

    def hold_back(self, until_s: float) -> None:
        """Another worker was told to wait until then; so do we."""
        if until_s > self.cool_until_s:
            self.cool_until_s = until_s
            self.heeding = True

    # -- the breaker ----------------------------------------------------------------------------------------------

    def _connect_failed(self, call: Pass, failure: Failure, now_s: float) -> Failure:
        self._down += 1
        if call.probe or (self.open_until_s is None and self._down >= DOWN_AFTER):
            self._open(now_s)
        if self.open_until_s is None or failure.cls is FailureClass.ENDPOINT_DOWN:
            return failure
        return msgspec.structs.replace(failure, cls=FailureClass.ENDPOINT_DOWN)

    def _silence(self, call: Pass) -> None:
        """A probe that told nothing: another may go at once."""
        if call.probe:
            self._probe_until_s = 0.0

    def _open(self, now_s: float) -> None:
        delay_s = min(OPEN_CAP_S, OPEN_BASE_S * 2**self._open_streak)
        self._open_streak = min(self._open_streak + 1, 16)
        self.open_until_s = now_s + delay_s
        self._probe_until_s = 0.0

    def _close(self) -> None:
        self.open_until_s = None
        self._open_streak = 0
        self._probe_until_s = 0.0

    # -- rate limits and overload ---------------------------------------------------------------------------------

    def _rate_limited(self, call: Pass, failure: Failure, now_s: float) -> None:
        self._answered(call)
        self.heeding = False
        if call.cohort == self._cohort:
            delay_s = min(COOL_CAP_S, COOL_BASE_S * 2**self._cool_streak)
            self._cool_streak = min(self._cool_streak + 1, 16)
            self.cool_until_s = max(self.cool_until_s, now_s + delay_s)
            self._shrink()
        self._wait_for(failure, now_s)

    def _overloaded(self, call: Pass, failure: Failure, now_s: float) -> None:
        if call.cohort == self._cohort:
            self._shrink()
        self._wait_for(failure, now_s)
        self._count_broken(call, now_s)

    def _server_error(self, call: Pass, failure: Failure, now_s: float) -> Failure:
        """A 5xx: part of a burst, and then overload that costs no attempt, or the request's own."""
        self._note(now_s, bad=True)
        alone = self.limit <= 1.0
        if alone or not self._in_burst():
            self._count_broken(call, now_s)
            return failure
        if call.cohort == self._cohort:
            self._shrink()
        return msgspec.structs.replace(failure, cls=FailureClass.OVERLOADED)

    def _count_broken(self, call: Pass, now_s: float) -> None:
        """At the smallest limit, a run of server errors means that the server is broken, not busy."""
        if self.limit > 1.0 and not call.probe:
            return
        self._broken += 1
        if call.probe or (self.open_until_s is None and self._broken >= BROKEN_AFTER):
            self._open(now_s)

    def _answered(self, call: Pass) -> None:
        """Something spoke HTTP and was not broken: that ends an open breaker."""
        self._down = self._broken = 0
        if call.probe:
            self._close()

    def _wait_for(self, failure: Failure, now_s: float) -> None:
        if failure.retry_after_s:
            self.cool_until_s = max(self.cool_until_s, now_s + failure.retry_after_s)

    def _shrink(self) -> None:
        """Halve the limit for a new cohort; remember the level that worked, unless nothing has worked since."""
        limit = max(1.0, min(self.limit, float(self.outstanding)) // 2)
        if self._good_since_shrink:
            self._threshold = limit
        self._good_since_shrink = False
        self.limit = limit
        self._peak = self._round = 0
        self._cohort += 1

    def _recover(self, now_s: float) -> None:
        self._good_since_shrink = True
        if self.cool_until_s and now_s >= self.cool_until_s:
            self.cool_until_s = 0.0
            self.heeding = False
            self._cool_streak = 0
        if self.limit < self.ceiling:
            self._grow()

    def _grow(self) -> None:
        """Let the limit grow if it is used: if more than half of it was in flight within the last round of answers."""
        if self._peak * 2 >= self.limit:
            step = 1.0 if self.limit < self._threshold else 1.0 / self.limit
            self.limit = min(self.ceiling, self.limit + step)
        self._round += 1
        if self._round >= self.limit:
            self._round = 0
            self._peak = self.outstanding

    # -- bursts ---------------------------------------------------------------------------------------------------

    def _note(self, now_s: float, *, bad: bool) -> None:
        self._burst.append((now_s, bad))
        while self._burst[0][0] < now_s - BURST_WINDOW_S or len(self._burst) > 4 * BURST_MIN:
            self._burst.popleft()
        if bad:
            self._last_bad_s = now_s

    def _note_good(self, now_s: float) -> None:
        """Good answers matter only while there are bad ones to weigh them against."""
        if now_s - self._last_bad_s > BURST_WINDOW_S:
            self._burst.clear()
        else:
            self._note(now_s, bad=False)

    def _in_burst(self) -> bool:
        bad = sum(1 for _, was_bad in self._burst if was_bad)
        return bad >= BURST_MIN and bad * 2 >= len(self._burst)
