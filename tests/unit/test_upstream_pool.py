"""Choosing an endpoint."""

from __future__ import annotations

from collections import Counter

import pytest

from gristmill.contract.failure import Failure, FailureClass
from gristmilld.config import EndpointConfig, Secret
from gristmilld.upstream.endpoint import Endpoint
from gristmilld.upstream.outcome import Answer, FailedCall
from gristmilld.upstream.pool import EndpointPool

DOWN = Failure(FailureClass.ENDPOINT_DOWN, "x")
LIMITED = Failure(FailureClass.RATE_LIMITED, "x", status_code=429, retry_after_s=9.0)
OK = Answer(status_code=200, body=b"{}", request_id=None, prompt_tokens=0, completion_tokens=0, flags=[],
            latency_ms=1, first_byte_ms=1, endpoint="a")  # fmt: skip


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def make(clock: Clock, *names: str, **settings: object) -> EndpointPool:
    configs = [EndpointConfig(name=n, url=f"http://{n}:8000/v1", **settings) for n in names]
    return EndpointPool(Endpoint(c, now=clock) for c in configs)


def end(endpoint: Endpoint, outcome: Answer | Failure | None) -> Answer | Failure | None:
    with endpoint.begin() as call:
        call.outcome = outcome
    return call.outcome


def test_the_least_outstanding_is_picked(clock):
    """Calls spread evenly while none ends, and go where calls have ended."""
    pool = make(clock, "a", "b", "c")
    calls = []
    for _ in range(30):
        endpoint = pool.pick()
        assert endpoint is not None
        calls.append((endpoint, endpoint.begin()))
    assert Counter(e.name for e, _ in calls) == {"a": 10, "b": 10, "c": 10}
    for endpoint, call in calls:
        if endpoint.name == "b":
            with call:
                call.outcome = OK
    picked = [e for _ in range(5) if (e := pool.pick()) and e.begin()]
    assert {e.name for e in picked} == {"b"}


def test_ties_take_turns(clock):
    """With nothing in flight, the first endpoint is not always the one."""
    pool = make(clock, "a", "b")
    assert {e.name for _ in range(4) if (e := pool.pick())} == {"a", "b"}


def test_a_job_may_name_endpoints_by_name_or_url(clock):
    """Names, base URLs in any spelling, nothing for all; an unknown name gives none."""
    pool = make(clock, "a", "b", "c")
    assert [e.name for e in pool.among(["b"])] == ["b"]
    assert [e.name for e in pool.among(["http://c:8000/", "a"])] == ["c", "a"]
    assert [e.name for e in pool.among(["http://c:8000/v1/chat/completions"])] == ["c"]
    assert len(pool.among([])) == len(pool.among(None)) == 3
    assert pool.pick(["nope"]) is None
    assert pool.next_ready_in_s(["nope"]) is None


def test_a_url_that_is_not_configured_goes_without_a_key(clock):
    """A job cannot borrow a key by naming another URL; the same one again is the same endpoint."""
    pool = make(clock, "a", key=Secret("sk-1"))
    (other,) = pool.among(["http://other:9000"])
    assert (other.url, "Authorization" in other.headers) == ("http://other:9000/v1", False)
    assert pool.among(["http://other:9000/v1", "a"]) == (other, pool.endpoints[0])


def test_an_endpoint_that_is_down_or_cooling_is_passed_over(clock):
    """The others get its calls; when none is left, the pool says how long until one is."""
    pool = make(clock, "a", "b")
    a, b = pool.endpoints
    for _ in range(3):
        end(a, DOWN)
    assert {pool.pick() for _ in range(4)} == {b}
    assert pool.next_ready_in_s() == 0.0
    end(b, LIMITED)
    assert pool.pick() is None
    assert pool.next_ready_in_s() == 1.0
    assert pool.next_ready_in_s(["b"]) == 9.0
    assert (a.state, b.state) == ("down", "cooling")
    clock.now_s += 1.0
    assert pool.pick() is a


def test_when_all_are_full_only_an_end_helps(clock):
    """Full endpoints are not waited for by time."""
    pool = make(clock, "a", max_in_flight=1)
    call = pool.endpoints[0].begin()
    assert pool.pick() is None
    assert pool.next_ready_in_s() is None
    with call:
        call.outcome = OK
    assert pool.next_ready_in_s() == 0.0


def test_a_call_without_an_outcome_is_over_all_the_same(clock):
    """An exception (cancelled, lost lease) leaves nothing in flight and no mark."""
    endpoint = make(clock, "a").endpoints[0]
    with pytest.raises(KeyError), endpoint.begin():
        raise KeyError
    assert (endpoint.outstanding, endpoint.state) == (0, "ok")


def test_a_burst_is_explained_to_the_caller(clock):
    """The outcome to decide by is the endpoint's: a 5xx in a burst has become `overloaded`."""
    endpoint = make(clock, "a").endpoints[0]
    calls = [endpoint.begin() for _ in range(40)]
    for call in calls:
        with call:
            call.outcome = Failure(FailureClass.TRANSIENT, "x", status_code=500)
    assert isinstance(calls[-1].outcome, Failure)
    assert calls[-1].outcome.cls is FailureClass.OVERLOADED
    assert endpoint.state == "limited"


def test_a_key_shows_in_no_repr(clock):
    """Not in the endpoint's, not in the pool's."""
    pool = make(clock, "a", key=Secret("sk-sentinel-99"))
    assert "sentinel" not in repr(pool.endpoints[0]) + repr(pool) + repr(vars(pool))


@pytest.mark.parametrize("key", ["sk-1\nX-Evil: 1", "sk-ключ", "sk-\x00"])
def test_a_key_that_is_no_header_is_found_at_the_start(clock, key):
    """Not at the first call, and without showing the key."""
    with pytest.raises(ValueError, match="endpoint a: its key holds") as caught:
        make(clock, "a", key=Secret(key))
    assert "sk-" not in str(caught.value)


def test_an_unreadable_ca_file_is_named(clock, tmp_path):
    """A wrong ca_file is found at the start, with endpoint and file."""
    for path in (tmp_path / "missing.pem", tmp_path / "empty.pem"):
        if path.name == "empty.pem":
            path.write_text("nothing")
        with pytest.raises(ValueError, match=f"endpoint a: .*{path.name}"):
            make(clock, "a", ca_file=str(path))


def test_down_and_up_again_are_told_once_each(clock, caplog):
    """A person sees in the log that requests wait, why, and when it is over."""
    caplog.set_level("INFO")
    endpoint = make(clock, "a").endpoints[0]
    for _ in range(20):
        end(endpoint, Failure(FailureClass.ENDPOINT_DOWN, "no connection to the endpoint: refused"))
    clock.now_s += 1
    end(endpoint, OK)
    end(endpoint, OK)
    assert [r.getMessage() for r in caplog.records] == [
        "endpoint a is down, its requests wait: no connection to the endpoint: refused",
        "endpoint a answers again",
    ]


def test_deaths_at_one_age_are_told(clock, caplog):
    """The advice reaches the log with the endpoint's name."""
    endpoint = make(clock, "a").endpoints[0]
    for _ in range(20):
        end(endpoint, FailedCall(FailureClass.TRANSIENT, "x", latency_ms=60_000))
    assert [r.getMessage()[:40] for r in caplog.records] == ["endpoint a: 8 of the last 8 calls that d"]
