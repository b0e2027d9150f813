"""PURE: what happens to a request after a failed attempt.

A short wait keeps the slot, since giving the request back and claiming it again costs more than the wait; a long one
gives the slot to another request. Only classes whose rule says so cost an attempt, and nothing is final for want of
attempts but those. The delay is drawn from the whole span (full jitter), so that requests that failed together do not
come back together; what the server asked for in Retry-After is the floor.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from gristmill.contract.failure import Failure, FailureClass, Then

BASE_S = 1.0
CAP_S = 60.0
OVERLOAD_SPAN_S = 8.0
"""An overloaded server's requests come back spread over this span; the endpoint's own limit does the rest."""
IN_PLACE_S = 5.0
"""Longest wait that keeps the slot."""


class Action(StrEnum):
    RETRY_NOW = "retry_now"
    """Send again at once, on a new connection."""
    RETRY_IN = "retry_in"
    """Keep the slot, wait `delay_s`, send again."""
    PUT_BACK = "put_back"
    """Give the request back to the queue with `delay_s`."""
    WAIT = "wait"
    """Wait until the pool has an endpoint that is ready; at least `delay_s`."""
    PAUSE_JOB = "pause_job"
    """Give the request back uncharged and pause the job: a person has to act."""
    FINAL = "final"
    """Commit it as failed."""


class Decision(msgspec.Struct, frozen=True):
    """`charged` says whether this attempt counts against the request's allowance."""

    action: Action
    delay_s: float
    charged: bool


def decide(failure: Failure, charged: int, max_attempts: int, jitter: float, max_backoff_s: float = CAP_S) -> Decision:
    """What happens next to a request whose attempt ended in `failure`.

    Args:
        charged: attempts charged before this one.
        max_attempts: charged attempts that a request may have.
        jitter: in [0, 1), drawn by the caller.
        max_backoff_s: longest wait of our own choice; what the server asks for may be longer.
    """
    rule = failure.rule
    floor_s = failure.retry_after_s or 0.0
    if rule.costs_attempt and (rule.then is Then.FINAL or charged + 1 >= max_attempts):
        return Decision(Action.FINAL, 0.0, charged=True)
    match rule.then:
        case Then.FINAL:
            return Decision(Action.FINAL, 0.0, charged=False)
        case Then.RETRY_AT_ONCE:
            return Decision(Action.RETRY_NOW, 0.0, rule.costs_attempt)
        case Then.PAUSE_JOB:
            return Decision(Action.PAUSE_JOB, 0.0, charged=False)
        case Then.WAIT:
            return Decision(Action.WAIT, floor_s, rule.costs_attempt)
        case Then.BACK_OFF:
            span_s = min(max_backoff_s, _span_s(failure.cls, charged))
            return _back_off(max(floor_s, jitter * span_s), charged=rule.costs_attempt)


def _span_s(cls: FailureClass, charged: int) -> float:
    """The longest wait that jitter may draw, seconds."""
    if cls is FailureClass.OVERLOADED:
        return OVERLOAD_SPAN_S
    if cls is FailureClass.INVALID_OUTPUT:
        return 0.0  # the server is well; asking again is all there is to do
    return float(min(CAP_S, BASE_S * 2**charged))


def _back_off(delay_s: float, *, charged: bool) -> Decision:
    action = Action.RETRY_IN if delay_s <= IN_PLACE_S else Action.PUT_BACK
    return Decision(action, delay_s, charged)
