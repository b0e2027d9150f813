"""What progress says: rates, time left, phases; and that it fits any terminal."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gristmill.cli._progress import STALL_S, WINDOW_S, Facts, Meter, Phase, View, phase_of
from gristmill.cli._render import plain_line, terminal_lines

RUNNING = Facts(at_s=0, ok=500, total=1000, fed=1000, in_flight=64, tokens=5000)


def facts(**changes: Any) -> Facts:
    return msgspec.structs.replace(RUNNING, **changes)


def test_rates_and_time_left_come_from_a_window():
    """A fast start does not shine for ever: rates are means over the last window."""
    meter = Meter(0)
    view = meter.view(facts(at_s=0, ok=0, tokens=0))
    assert (view.requests_per_s, view.eta_s) == (0, None)
    meter.view(facts(at_s=1, ok=400, tokens=4000))
    for t in range(2, int(WINDOW_S) + 12):
        view = meter.view(facts(at_s=t, ok=400 + t, tokens=4000 + 10 * t))
    assert view.requests_per_s == pytest.approx(1, rel=0.05)
    assert view.tokens_per_s == pytest.approx(10, rel=0.05)
    assert view.eta_s == pytest.approx(1000 - 400 - t, rel=0.06)


def test_the_first_requests_and_the_last_say_nothing_of_the_time_left():
    """Those that go out alone are slow by design; stragglers end when they end."""
    meter = Meter(0)
    meter.view(facts(at_s=0, ok=0))
    assert meter.view(facts(at_s=8, ok=4)).eta_s is None
    assert meter.view(facts(at_s=9, ok=104)).eta_s == pytest.approx(896 / 100)
    view = meter.view(facts(at_s=20, ok=980, in_flight=20))
    assert (view.phase, view.eta_s) == (Phase.STRAGGLERS, None)


def test_carried_lines_count_as_done_and_not_as_speed():
    """A rerun shows the whole input, and the speed of what is really sent."""
    meter = Meter(0)
    meter.view(facts(at_s=0, ok=0, carried=900, in_flight=10))
    view = meter.view(facts(at_s=10, ok=50, carried=900, in_flight=10))
    assert (view.done, view.total) == (950, 1000)
    assert view.requests_per_s == 5
    assert view.eta_s == 10


def test_a_guessed_total_is_marked_as_one():
    """While the input is being read the total is an estimate and shown as such."""
    view = Meter(0).view(facts(total=None, guessed_total=1200))
    assert (view.total, view.is_guess) == (1200, True)
    assert "of about 1,200" in plain_line(view)
    assert "~1,200" in terminal_lines(view, "x.jsonl", 100)[0].plain


@pytest.mark.parametrize(
    ("changes", "stalled_s", "phase", "waiting_for"),
    [
        ({}, 0, Phase.RUNNING, ""),
        ({"total": None}, 0, Phase.FEEDING, ""),
        ({"ok": 0, "in_flight": 0, "fed": 0, "total": None}, 0, Phase.FEEDING, "the first requests"),
        ({"ok": 0, "in_flight": 0}, 0, Phase.STARTING, "the workers"),
        ({"trouble": "http://h/v1 refused the connection"}, 0, Phase.WAITING, "http://h/v1 refused the connection"),
        ({}, STALL_S + 2, Phase.WAITING, "answers to 64 requests, none for 12 s"),
        ({"in_flight": 0}, STALL_S, Phase.WAITING, "the workers, none for 10 s"),
        ({"ok": 999, "in_flight": 1}, 1, Phase.STRAGGLERS, "the last request"),
        ({"ok": 998, "in_flight": 2}, 60, Phase.STRAGGLERS, "the last 2 requests, none for 60 s"),
        ({"draining": True}, 0, Phase.DRAINING, "64 requests in flight"),
        ({"finalizing": True}, 0, Phase.FINALIZING, "OUT to be completed and checked"),
        ({"state": "paused"}, 99, Phase.PAUSED, "64 requests in flight"),
        ({"state": "complete", "in_flight": 0}, 99, Phase.DONE, ""),
    ],
)
def test_phase_names_what_is_waited_for(changes: dict[str, Any], stalled_s: float, phase: Phase, waiting_for: str):
    """A stalled run does not look like a slow one, and the end of a run is no bar at 100 %."""
    assert phase_of(facts(**changes), stalled_s) == (phase, waiting_for)


def test_stall_ends_with_the_next_result():
    """The clock of a stall starts anew with each finished request."""
    meter = Meter(0)
    meter.view(facts(at_s=0))
    meter.view(facts(at_s=20))
    assert meter.stalled_s(20) == 20
    meter.view(facts(at_s=21, failed=1))
    assert meter.stalled_s(21) == 0


def view(**changes: Any) -> View:
    base = View(
        elapsed_s=30,
        done=612_000,
        failed=12,
        total=1_000_000,
        is_guess=False,
        in_flight=128,
        requests_per_s=214,
        tokens_per_s=18_300,
        eta_s=1812,
        phase=Phase.RUNNING,
        waiting_for="",
    )
    return msgspec.structs.replace(base, **changes)


def test_plain_line_has_everything():
    """One line says it all, without escape codes."""
    assert plain_line(view()) == (
        "0:30 running: 612,000 of 1,000,000 done (61 %), 12 failed, 128 in flight, 214 req/s, 18.3k tok/s, 30:12 left"
    )
    line = plain_line(view(phase=Phase.WAITING, waiting_for="a collector"))
    assert line.endswith("; waiting for a collector")


@pytest.mark.parametrize("width", [20, 39, 60, 79, 120, 200])
@pytest.mark.parametrize(
    "changes",
    [{}, {"total": None}, {"phase": Phase.WAITING, "waiting_for": "http://example.com:8000/v1 refused the connection"}],
)
def test_terminal_lines_fit(width: int, changes: dict[str, Any]):
    """Two lines at every width, never wider than the terminal, and the phase is always there."""
    lines = terminal_lines(view(**changes), "a-rather-long-name-of-an-input.jsonl", width)
    assert len(lines) == 2
    assert all(len(line) <= width for line in lines)
    assert str(view(**changes).phase) in lines[0].plain


def test_wide_terminal_shows_bar_and_all_numbers():
    """With room there are title, bar, share, counts, failures and rates."""
    first, second = (line.plain for line in terminal_lines(view(), "in.jsonl", 100))
    assert first.startswith("in.jsonl  running  ━")
    assert first.endswith(" 61 %  612k/1.00M  12 failed")
    assert second == "  0:30 · 128 in flight · 214 req/s · 18.3k tok/s · 30:12 left"
