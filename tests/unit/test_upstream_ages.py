"""Deaths at the same age."""

from __future__ import annotations

import pytest

from gristmill.contract.failure import FailureClass
from gristmilld.upstream.ages import ENOUGH, Ages
from gristmilld.upstream.outcome import Clock, FailedCall

C = FailureClass


def cut(age_s: float, **more: object) -> FailedCall:
    return FailedCall(C.TRANSIENT, "x", latency_ms=int(age_s * 1000), **more)


def test_a_proxy_that_cuts_at_one_age_is_told_once():
    """The eighth death at a minute brings the advice, further ones do not; another age brings its own."""
    ages = Ages()
    said = [ages.note(cut(60 + i / 20)) for i in range(20)]
    assert [i for i, s in enumerate(said) if s] == [ENOUGH - 1]
    assert "60 s old" in (said[ENOUGH - 1] or "")
    assert "proxy" in (said[ENOUGH - 1] or "")
    assert any("120 s old" in (ages.note(cut(120)) or "") for _ in range(ENOUGH))


def test_our_own_clock_is_named():
    """Deaths by a time-out of the job say which one to raise."""
    ages = Ages()
    said = [ages.note(FailedCall(C.TIMEOUT, "x", latency_ms=300_000, clock=Clock.IDLE)) for _ in range(ENOUGH)]
    assert "idle time-out" in (said[-1] or "")


@pytest.mark.parametrize(
    "deaths",
    [
        [cut(1.0)] * 30,
        [cut(10 * 1.2**i) for i in range(30)],
        [cut(60, status_code=500)] * 30,
        [FailedCall(C.TIMEOUT, "x", latency_ms=10_000, clock=Clock.CONNECT)] * 30,
        [cut(60)] * (ENOUGH - 1),
    ],
)
def test_other_deaths_are_no_sign(deaths):
    """Young ones, scattered ones, answers, connects that time out, and too few."""
    ages = Ages()
    assert [ages.note(d) for d in deaths] == [None] * len(deaths)


def test_a_gateway_time_out_counts():
    """504 and 524 are a proxy's way to say that it cut."""
    ages = Ages()
    assert [ages.note(cut(100, status_code=504)) for _ in range(ENOUGH)][-1] is not None
