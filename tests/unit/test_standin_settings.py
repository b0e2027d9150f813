"""The stand-in's words: latencies, faults and controls."""

from __future__ import annotations

import random
import statistics

import pytest

from gristmilld.engine.standin.faults import FOREVER_S, Fault, parse_fault
from gristmilld.engine.standin.latency import parse_latency
from gristmilld.engine.standin.settings import Settings, read_control

CHANCE = random.Random(7)


def draws(text: str, count: int = 4000) -> list[float]:
    draw = parse_latency(text)
    assert draw is not None
    return sorted(draw(CHANCE.random()) for _ in range(count))


def test_latencies_have_their_shapes():
    """Fixed, uniform, exponential and lognormal, with the middle and the tail that they name."""
    assert parse_latency("0") is None
    assert set(draws("0.4")) == {0.4}
    uniform = draws("uniform:1:3")
    assert uniform[0] >= 1
    assert uniform[-1] <= 3
    assert statistics.mean(draws("exp:0.5")) == pytest.approx(0.5, rel=0.1)
    lognormal = draws("lognormal:0.4:0.7")
    assert statistics.median(lognormal) == pytest.approx(0.4, rel=0.1)
    assert lognormal[int(len(lognormal) * 0.841)] == pytest.approx(0.4 * 2.718281828**0.7, rel=0.1)


@pytest.mark.parametrize("text", ["fast", "", "-1", "nan", "uniform:1", "lognormal:1:2:3", "gauss:1:2", "exp:x"])
def test_other_latencies_are_refused_with_examples(text):
    """The message shows what a latency looks like."""
    with pytest.raises(ValueError, match=r"lognormal:0\.4:0\.7"):
        parse_latency(text)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("429=2@0.1", Fault(kind="status", status=429, retry_after=2.0, rate=0.1)),
        ("503@0.05", Fault(kind="status", status=503, rate=0.05)),
        ("500", Fault(kind="status", status=500)),
        ("stall=3@0.01", Fault(kind="stall", seconds=3.0, rate=0.01)),
        ("reset", Fault(kind="reset")),
        ("finish=content_filter", Fault(kind="finish", reason="content_filter")),
    ],
)
def test_faults_of_the_command_line(text, fault):
    """KIND[=VALUE][@RATE]."""
    assert parse_fault(text) == fault


@pytest.mark.parametrize("text", ["explode", "reset@often", "stall=long", "", "@1"])
def test_other_faults_are_refused_with_examples(text):
    """The message shows what a fault looks like."""
    with pytest.raises(ValueError, match=r"429=2@0\.1"):
        parse_fault(text)


def takes(fault: Fault, body: bytes = b"{}", path: str = "/v1/chat/completions", *, reused: bool = False) -> bool:
    return fault.takes(path, body, CHANCE, reused=reused)


def test_a_fault_takes_the_requests_it_names():
    """By text, path and reuse; so many after so many; and a share."""
    assert takes(Fault(kind="reset"))
    assert [takes(Fault(kind="reset", text="POISON"), b) for b in (b"a POISON b", b"ab")] == [True, False]
    assert [takes(Fault(kind="reset", path=p)) for p in ("/chat/completions", "/embeddings")] == [True, False]
    assert [takes(Fault(kind="reset", reused=True), reused=r) for r in (True, False)] == [True, False]
    counted = Fault(kind="reset", skip=2, times=3)
    assert [takes(counted) for _ in range(8)] == [False, False, True, True, True, False, False, False]
    share = Fault(kind="reset", rate=0.25)
    assert 200 < sum(takes(share) for _ in range(1000)) < 300


def test_a_count_counts_only_what_else_would_match():
    """Requests of another text use up neither `skip` nor `times`."""
    fault = Fault(kind="reset", text="x", times=1)
    assert [takes(fault, b) for b in (b"a", b"b", b"x", b"x")] == [False, False, True, False]


def test_a_stall_without_a_time_is_for_ever():
    """Only stalls wait by themselves."""
    assert Fault(kind="stall").delay_s == FOREVER_S
    assert Fault(kind="stall", seconds=2).delay_s == 2
    assert Fault(kind="reset").delay_s == 0


def test_a_control_changes_what_it_names():
    """What it leaves out stays."""
    settings = Settings()
    settings.apply(read_control(b'{"latency": "exp:1", "concurrency": 3, "key": "k", "faults": [{"kind": "reset"}]}'))
    settings.apply(read_control(b'{"strict_model": true}'))
    assert settings.latency is not None
    assert (settings.concurrency, settings.key, settings.strict_model, len(settings.faults)) == (3, "k", True, 1)
    settings.apply(read_control(b'{"latency": 0, "concurrency": 0, "key": null, "faults": []}'))
    assert (settings.latency, settings.concurrency, settings.key, settings.faults) == (None, None, None, [])


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b'{"lag": 1}', b'{"faults": [{"kind": "x"}]}', b'{"faults": [{"kind": "reset", "y": 1}]}']
)
def test_a_wrong_control_is_refused(body):
    """Unknown fields and kinds are errors, so that no test plants a fault that never comes."""
    with pytest.raises(ValueError, match="no such control"):
        read_control(body)
