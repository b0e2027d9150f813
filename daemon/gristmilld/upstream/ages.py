"""PURE: many deaths at the same age point to a timer, not to the requests.

A proxy that cuts every connection after 60 s, or one of our own clocks set too short, kills long answers again and
again: each retry repeats work that dies at the same age. The ages of the last deaths tell; the advice is given once
for an age.
"""

from __future__ import annotations

from collections import deque

from gristmill.contract.failure import FailureClass
from gristmilld.upstream.outcome import Clock, FailedCall

REMEMBERED = 32
ENOUGH = 8
LEAST_AGE_S = 5.0
"""Younger deaths have other causes."""
_GATEWAY_TIMEOUTS = frozenset({408, 499, 504, 524})
SPREAD = 0.03
"""Ages that differ by so small a part of themselves are the same."""


class Ages:
    """The ages at which calls to one endpoint died."""

    __slots__ = ("_ages_s", "_told_s")

    def __init__(self) -> None:
        self._ages_s: deque[float] = deque(maxlen=REMEMBERED)
        self._told_s = 0.0

    def note(self, failure: FailedCall) -> str | None:
        """Take in a failed call; a sentence with advice when it is one too many at the same age, else None."""
        age_s = failure.latency_ms / 1000
        if age_s < LEAST_AGE_S or not _died(failure):
            return None
        self._ages_s.append(age_s)
        same = sum(abs(a - age_s) <= SPREAD * age_s for a in self._ages_s)
        if same < ENOUGH or abs(self._told_s - age_s) <= SPREAD * age_s:
            return None
        self._told_s = age_s
        return (
            f"{same} of the last {len(self._ages_s)} calls that died were {age_s:.0f} s old: {_advice(failure.clock)}"
        )


def _died(failure: FailedCall) -> bool:
    """Whether the call was ended from outside or by a clock, rather than answered."""
    if failure.clock is not None:
        return failure.clock is not Clock.CONNECT
    cut_off = failure.cls is FailureClass.TRANSIENT and failure.status_code is None
    return cut_off or failure.status_code in _GATEWAY_TIMEOUTS


def _advice(clock: Clock | None) -> str:
    if clock is None:
        return "a proxy or load balancer seems to cut at that age; raise its time-out"
    return f"that is the {clock} time-out of the job; raise it if answers may take longer"
