"""An endpoint's limits, by a clock that the test turns."""

from __future__ import annotations

import pytest

from gristmill.contract.failure import Failure, FailureClass
from gristmilld.upstream.limits import (
    BROKEN_AFTER,
    BURST_MIN,
    BURST_WINDOW_S,
    COOL_CAP_S,
    DOWN_AFTER,
    OPEN_CAP_S,
    PROBE_EVERY_S,
    Limits,
    Pass,
)
from gristmilld.upstream.outcome import Clock, FailedCall

C = FailureClass
LIMITED = Failure(C.RATE_LIMITED, "x", status_code=429)
DOWN = Failure(C.ENDPOINT_DOWN, "x")
BUSY = Failure(C.OVERLOADED, "x", status_code=503)
BROKEN = Failure(C.TRANSIENT, "x", status_code=500)
NO_CONNECT = FailedCall(C.TIMEOUT, "x", clock=Clock.CONNECT)


class Bench:
    """Limits, a clock, and calls in flight."""

    def __init__(self, ceiling: int = 0) -> None:
        self.limits = Limits(ceiling)
        self.now_s = 1000.0

    def begin(self, count: int) -> list[Pass]:
        return [self.limits.begin(self.now_s) for _ in range(count)]

    def fail(self, calls: list[Pass], failure: Failure) -> list[Failure]:
        return [self.limits.failed(c, failure, self.now_s) for c in calls]

    def good(self, calls: list[Pass]) -> None:
        for call in calls:
            self.limits.good(call, self.now_s)

    def round(self, count: int, failure: Failure | None = None) -> None:
        calls = self.begin(count)
        if failure is None:
            self.good(calls)
        else:
            self.fail(calls, failure)

    @property
    def ready(self) -> bool:
        return self.limits.ready(self.now_s)

    @property
    def ready_in_s(self) -> float:
        return self.limits.ready_in_s(self.now_s)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_healthy_endpoint_is_unbounded_unless_told(bench):
    """Without a ceiling anything may be in flight; with one, exactly so many."""
    bench.begin(10_000)
    assert bench.ready
    capped = Bench(ceiling=2)
    calls = capped.begin(2)
    assert not capped.ready
    capped.good(calls[:1])
    assert capped.ready


def test_one_cohort_of_429_cools_down_once(bench):
    """A hundred refusals at the same time are one event: one second, and one halving."""
    bench.round(100, LIMITED)
    assert bench.ready_in_s == 1.0
    assert bench.limits.limit == 50
    bench.now_s += 1.0
    assert bench.ready


def test_cool_down_doubles_to_a_cap(bench):
    """Refused again after each cool-down, it waits twice as long, to a minute."""
    waits = []
    for _ in range(9):
        bench.round(1, LIMITED)
        waits.append(bench.ready_in_s)
        bench.now_s += bench.ready_in_s
    assert waits == [1, 2, 4, 8, 16, 32, COOL_CAP_S, COOL_CAP_S, COOL_CAP_S]


def test_retry_after_is_the_floor_also_from_a_later_answer(bench):
    """The longest wait that any of the refused was given holds."""
    calls = bench.begin(2)
    bench.fail(calls[:1], LIMITED)
    bench.fail(calls[1:], Failure(C.RATE_LIMITED, "x", status_code=429, retry_after_s=90.0))
    assert bench.ready_in_s == 90.0


def test_a_good_answer_ends_the_streak(bench):
    """After work went well again, the next refusal starts from the shortest wait."""
    for _ in range(4):
        bench.round(1, LIMITED)
        bench.now_s += bench.ready_in_s
    bench.round(1)
    bench.round(1, LIMITED)
    assert bench.ready_in_s == 1.0


def test_late_good_answers_of_the_refused_cohort_do_not_end_a_cool_down(bench):
    """What was sent before the refusal says nothing about after."""
    calls = bench.begin(10)
    bench.fail(calls[:1], LIMITED)
    bench.good(calls[1:])
    assert not bench.ready


def test_overload_halves_once_per_cohort(bench):
    """Everything in flight when it was halved belongs to that halving."""
    old = bench.begin(64)
    bench.fail(old[:32], BUSY)
    assert bench.limits.limit == 32
    bench.fail(old[32:], BUSY)
    assert bench.limits.limit == 32
    bench.round(32, BUSY)
    assert bench.limits.limit == 16


def test_the_limit_grows_back_fast_then_slowly(bench):
    """To the level that worked it doubles per round of answers; above, it grows by about one per round."""
    bench.round(64, BUSY)
    for _ in range(4):
        bench.round(int(bench.limits.limit), BUSY)
    assert bench.limits.limit == 2
    rounds = 0
    while bench.limits.limit < 32:
        bench.round(int(bench.limits.limit))
        rounds += 1
    assert rounds <= 6
    before = bench.limits.limit
    bench.round(int(before))
    assert before + 0.5 < bench.limits.limit <= before + 1.1


def test_the_limit_does_not_grow_while_it_does_not_bind(bench):
    """An idle endpoint proves nothing about more load."""
    bench.round(64, BUSY)
    for _ in range(100):
        bench.round(1)
    assert bench.limits.limit == 32


def test_the_limit_never_exceeds_the_ceiling():
    """What the configuration allows stays the most."""
    bench = Bench(ceiling=4)
    bench.round(4, BUSY)
    for _ in range(50):
        bench.round(int(bench.limits.limit))
    assert bench.limits.limit == 4


def test_failed_connects_open_the_breaker_and_double_its_wait(bench):
    """A few in a row: nothing is sent for a time; then one probe alone; its failure doubles the time."""
    bench.round(DOWN_AFTER - 1, DOWN)
    assert bench.ready
    bench.round(1, DOWN)
    waits = [bench.ready_in_s]
    for _ in range(7):
        bench.now_s += bench.ready_in_s
        probe = bench.begin(1)
        assert not bench.ready, "one probe at a time"
        bench.fail(probe, DOWN)
        waits.append(bench.ready_in_s)
    assert waits == [1, 2, 4, 8, 16, OPEN_CAP_S, OPEN_CAP_S, OPEN_CAP_S]


def test_a_cohort_of_failed_connects_opens_it_once(bench):
    """256 refused connects at one moment are one outage, not a wait of half a minute."""
    bench.round(256, DOWN)
    assert bench.ready_in_s == 1.0


@pytest.mark.parametrize("outcome", ["good", "limited", "bad_request"])
def test_any_answer_to_the_probe_closes_the_breaker(bench, outcome):
    """Even a refusal shows that the server is there."""
    bench.round(DOWN_AFTER, DOWN)
    bench.now_s += bench.ready_in_s
    probe = bench.begin(1)
    if outcome == "good":
        bench.good(probe)
    else:
        bench.fail(probe, LIMITED if outcome == "limited" else Failure(C.BAD_REQUEST, "x", status_code=400))
    assert bench.limits.open_until_s is None


def test_an_abandoned_probe_lets_another_go_at_once(bench):
    """A cancelled probe told nothing."""
    bench.round(DOWN_AFTER, DOWN)
    bench.now_s += bench.ready_in_s
    probe = bench.begin(1)
    bench.limits.abandoned(probe[0])
    assert bench.ready
    assert bench.limits.outstanding == 0


def test_a_slow_probe_does_not_hold_up_the_rest_for_ever(bench):
    """An answer may take minutes, so another probe goes while the first is out."""
    bench.round(DOWN_AFTER, DOWN)
    bench.now_s += bench.ready_in_s
    bench.begin(1)
    bench.now_s += PROBE_EVERY_S
    assert bench.ready


def test_connect_timeouts_are_free_while_nothing_connects(bench):
    """A single one costs an attempt; when the endpoint does not connect at all, requests wait and none is burnt."""
    classes = [f.cls for f in bench.fail(bench.begin(10), NO_CONNECT)]
    assert classes == [C.TIMEOUT] * (DOWN_AFTER - 1) + [C.ENDPOINT_DOWN] * (10 - DOWN_AFTER + 1)


def test_a_burst_of_5xx_is_overload_and_free(bench):
    """The first few are the requests' own; when they pile up, load is the cause: the limit shrinks, none is charged."""
    classes = [f.cls for f in bench.fail(bench.begin(40), BROKEN)]
    assert classes[: BURST_MIN - 1] == [C.TRANSIENT] * (BURST_MIN - 1)
    assert set(classes[BURST_MIN - 1 :]) == {C.OVERLOADED}
    assert bench.limits.limit == 16


def test_scattered_5xx_are_no_burst(bench):
    """Few among many good answers, or spread over time, are each the request's own."""
    for _ in range(50):
        bench.round(5)
        assert bench.fail(bench.begin(1), BROKEN)[0].cls is C.TRANSIENT
    slow = Bench()
    for _ in range(50):
        slow.now_s += BURST_WINDOW_S / (BURST_MIN - 2)
        assert slow.fail(slow.begin(1), BROKEN)[0].cls is C.TRANSIENT


def test_a_server_that_only_fails_is_not_retried_for_free_for_ever(bench):
    """Shrunk to one in flight, load cannot be the cause: each 5xx is charged, and the breaker opens."""
    for _ in range(10):
        bench.round(max(1, min(64, int(min(bench.limits.limit, 64)))), BROKEN)
        if bench.limits.limit == 1:
            break
    assert bench.limits.limit == 1
    charged = [bench.fail(bench.begin(1), BROKEN)[0].cls for _ in range(BROKEN_AFTER)]
    assert charged == [C.TRANSIENT] * BROKEN_AFTER
    assert not bench.ready
    bench.now_s += bench.ready_in_s
    bench.round(1)
    assert bench.ready


def test_silence_says_nothing_of_the_endpoint(bench):
    """A cut connection or a slow answer changes no limit, and the call is no longer in flight."""
    bench.round(50, Failure(C.TRANSIENT, "x"))
    bench.round(50, Failure(C.STALE_CONNECTION, "x"))
    bench.round(50, FailedCall(C.TIMEOUT, "x", clock=Clock.TOTAL))
    assert bench.ready
    assert bench.limits.outstanding == 0
    assert bench.limits.limit == float("inf")


@pytest.mark.parametrize("cls", list(C))
@pytest.mark.parametrize("status", [None, 200, 400, 429, 500, 503])
def test_every_end_of_a_call_is_counted_once(bench, cls, status):
    """Whatever the outcome, the call is no longer in flight."""
    bench.round(20, Failure(cls, "x", status_code=status))
    assert bench.limits.outstanding == 0
