"""What happens after a failed attempt, class by class."""

from __future__ import annotations

import pytest

from gristmill.contract.failure import Failure, FailureClass
from gristmilld.upstream.retry import CAP_S, IN_PLACE_S, Action, Decision, decide

C = FailureClass


def after(cls: FailureClass, *, charged: int = 0, jitter: float = 0.0, wait_s: float | None = None) -> Decision:
    return decide(Failure(cls, "x", retry_after_s=wait_s), charged, 5, jitter)


@pytest.mark.parametrize(
    ("cls", "action", "charged"),
    [
        (C.RATE_LIMITED, Action.WAIT, False),
        (C.OVERLOADED, Action.RETRY_IN, False),
        (C.ENDPOINT_DOWN, Action.WAIT, False),
        (C.STALE_CONNECTION, Action.RETRY_NOW, False),
        (C.TRANSIENT, Action.RETRY_IN, True),
        (C.TIMEOUT, Action.RETRY_IN, True),
        (C.INVALID_OUTPUT, Action.RETRY_IN, True),
        (C.BAD_REQUEST, Action.FINAL, True),
        (C.CONTEXT_LENGTH, Action.FINAL, True),
        (C.CONTENT_FILTER, Action.FINAL, True),
        (C.TRUNCATED, Action.FINAL, True),
        (C.CONFIG_ERROR, Action.PAUSE_JOB, False),
        (C.BAD_IMAGE, Action.FINAL, False),
        (C.POISON, Action.FINAL, False),
        (C.DEADLINE, Action.FINAL, False),
        (C.CANCELLED, Action.FINAL, False),
    ],
)
def test_the_first_failure_of_each_class(cls, action, charged):
    """What happens, and whether it costs an attempt, follows the one table."""
    decision = after(cls)
    assert (decision.action, decision.charged) == (action, charged)


@pytest.mark.parametrize("cls", list(C))
def test_only_charged_classes_run_out_of_attempts(cls):
    """At the last attempt a class that costs one is final; one that costs none goes on as before."""
    last = after(cls, charged=4)
    if Failure(cls, "x").rule.costs_attempt:
        assert last.action is Action.FINAL
    else:
        assert last.action is after(cls).action


def test_back_off_doubles_is_capped_and_draws_from_the_whole_span():
    """Full jitter: from nothing to the whole of a span that doubles."""
    spans = [decide(Failure(C.TRANSIENT, "x"), n, 99, 0.999_999).delay_s for n in range(9)]
    assert [round(s) for s in spans] == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert max(spans) <= CAP_S
    assert after(C.TRANSIENT, charged=3, jitter=0.0).delay_s == 0.0


def test_a_long_wait_gives_the_slot_to_another():
    """Up to a few seconds the slot is kept, beyond the request goes back to the queue."""
    assert after(C.TRANSIENT, wait_s=IN_PLACE_S).action is Action.RETRY_IN
    assert after(C.TRANSIENT, wait_s=IN_PLACE_S + 1) == Decision(Action.PUT_BACK, IN_PLACE_S + 1, charged=True)
    assert after(C.OVERLOADED, jitter=0.9) == Decision(Action.PUT_BACK, 7.2, charged=False)


def test_what_the_server_asks_for_is_the_floor():
    """Retry-After lengthens a wait and never shortens it."""
    assert after(C.TRANSIENT, charged=3, jitter=0.5, wait_s=1.0).delay_s == 4.0
    assert after(C.TRANSIENT, jitter=0.5, wait_s=3.0).delay_s == 3.0
    assert after(C.RATE_LIMITED, wait_s=30.0).delay_s == 30.0


@pytest.mark.parametrize("cls", [C.TRANSIENT, C.OVERLOADED])
def test_a_job_may_bound_the_waits_of_our_own_choice(cls):
    """The longest wait is the job's; what the server asks for goes before it."""
    longest = decide(Failure(cls, "x"), 3, 99, 0.999_999, 3.0)
    assert longest.delay_s == pytest.approx(3.0, abs=0.01)
    assert decide(Failure(cls, "x", retry_after_s=20.0), 3, 99, 0.999_999, 3.0).delay_s == 20.0
