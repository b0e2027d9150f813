"""What `producer top` draws: everything that matters first, and nothing beyond the screen."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.unit.test_cli_jobview import RUNNING

from gristmill.cli._overview import Overview, Seen
from gristmill.cli._screen import Rates, screen
from gristmill.contract.failure import FailureClass
from gristmill.contract.lifecycle import JobState, PauseReason
from gristmill.contract.manifest import Manifest
from gristmill.queue.board import Board, Notice
from gristmill.queue.registry import DaemonInfo

DAEMON = DaemonInfo(
    daemon_id="d1", host="gpu1", pid=7, version="0.1.0", pool="default", workers=2, slots=512, started_at_ms=940_000
)
COOLING = Notice("http://gpu2:8000/v1", "cooling", 1_102_000, 1_090_000)


def seen(number: int = 1, **changes: Any) -> Seen:
    job = f"job-{number:03}"
    snapshot = msgspec.structs.replace(RUNNING, **({"job": job, "progress_at_ms": 1_089_900} | changes))
    return Seen(snapshot, Manifest(job=job, epoch="e", name=f"in-{number}.jsonl", created_at_ms=1))


def overview(*jobs: Seen, at_s: float = 10.0, **more: Any) -> Overview:
    found = {"total": len(jobs), "daemons": [DAEMON], "wall_ms": 1_000_000, "used_bytes": 64 << 20} | more
    return Overview(at_s=at_s, jobs=list(jobs), **found)


def drawn(*looks: Overview, width: int | None = 120, height: int | None = 30, error: str = "") -> list[str]:
    """The screen after these looks."""
    rates = Rates()
    for look in looks:
        views = rates.views(look)
    return [line.plain for line in screen(looks[-1], views, "STORE", width=width, height=height, error=error)]


def line_with(text: str, lines: list[str]) -> str:
    (found,) = [line for line in lines if text in line and not line.startswith("  ")]
    return found


def test_a_job_has_state_bar_counts_rate_and_time_left():
    """The rate comes from two looks; 100 finished in 10 s, 400 left: 40 s."""
    lines = drawn(overview(seen()), overview(seen(done=600), at_s=20.0))
    row = line_with("job-001", lines)
    assert row.split() == [
        "job-001", "running", "━" * 10 + "─" * 6, "600/1,000", "60", "%", "10/s", "20", "64", "0:40", "in-1.jsonl",
    ]  # fmt: skip
    assert "1 job   1 daemon, 2 workers, 512 slots   64 in flight   10 req/s" in lines
    assert line_with("gpu1", lines).split() == ["d1", "gpu1", "7", "0.1.0", "default", "2", "512", "1:00"]


@pytest.mark.parametrize(("width", "height"), [(40, 8), (80, 12), (100, 24), (200, 50)])
def test_nothing_leaves_the_screen(width: int, height: int):
    """Whatever there is; jobs that don't fit are counted, and some job is always shown."""
    jobs = [seen(n, state=JobState.PAUSED, reason=PauseReason.USER) for n in range(60)]
    daemons = [msgspec.structs.replace(DAEMON, daemon_id=f"d{n}") for n in range(40)]
    boards = {
        "default": Board(1_090_000, [msgspec.structs.replace(COOLING, endpoint=f"http://h{n}") for n in range(9)])
    }
    lines = drawn(overview(*jobs, total=5000, daemons=daemons, boards=boards), width=width, height=height)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    shown = sum(line.startswith("job-") for line in lines)
    assert shown >= 1
    assert f"and {5000 - shown:,} more" in lines


def test_a_low_screen_is_for_jobs_first():
    """Daemons go before endpoints, and both before the last jobs."""
    boards = {"default": Board(1_090_000, [COOLING])}
    low = drawn(overview(*map(seen, range(9)), boards=boards), height=13)
    assert [line for line in low if line.startswith("DAEMON")] == []
    assert line_with("gpu2", low)
    assert sum(line.startswith("job-") for line in low) >= 4


def test_an_endpoint_in_trouble_is_shown_once():
    """With the longest wait and how many workers say so; what it keeps waiting says so below itself."""
    boards = {"default": Board(1_090_000, [COOLING, COOLING])}
    idle = seen(progress_at_ms=1_080_000)
    lines = drawn(overview(idle, boards=boards), overview(idle, boards=boards, at_s=15.0))
    row = line_with("2 workers", [line for line in lines if "gpu2" in line])
    assert row.split()[:3] == ["http://gpu2:8000/v1", "cooling", "12"]
    waits = "  waiting for http://gpu2:8000/v1, which limits the rate and asks to wait 12 s"
    assert lines[lines.index(line_with("job-001", lines)) + 1] == waits
    assert "waiting" in line_with("job-001", lines)


def test_who_is_needed_stands_below_the_job():
    """A paused job says why and how it goes on, one without a daemon says so, an ended one nothing."""
    paused = seen(1, state=JobState.PAUSED, reason=PauseReason.CONFIG, detail="no key")
    ended = seen(2, state=JobState.COMPLETE, done=1000)
    lines = drawn(overview(paused, ended))
    at = lines.index(line_with("job-001", lines))
    assert lines[at + 1].startswith("  paused, the setup is at fault: no key.")
    assert lines[at + 2].startswith("job-002")
    assert "no daemon connected" in "\n".join(drawn(overview(seen(), daemons=[])))


def test_off_a_terminal_lines_are_whole():
    """No bars, no cuts, and every job."""
    failing = seen(3, by_class={FailureClass.TIMEOUT: 20})
    lines = drawn(overview(*map(seen, range(70)), failing, total=71), width=None, height=None)
    assert sum(line.startswith("job-") for line in lines) == 71
    assert not any("━" in line or "─" in line for line in lines)


def test_an_empty_store_and_an_outage_are_told():
    """Neither is a blank screen; the last look stays."""
    assert "no jobs in this store" in drawn(overview(daemons=[]))
    lines = drawn(overview(seen()), error="the store does not answer (ConnectionError); trying again")
    assert line_with("does not answer", lines)
    assert line_with("job-001", lines)
