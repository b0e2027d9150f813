"""What a snapshot of a job says to people: notes with advice, and tables that line up."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gristmill.cli import _jobview
from gristmill.contract.failure import FailureClass
from gristmill.contract.lifecycle import JobState, PauseReason
from gristmill.contract.manifest import Manifest
from gristmill.queue.replies import JobSnapshot, Lease

RUNNING = JobSnapshot(
    job="j1",
    epoch="e",
    version=9,
    state=JobState.RUNNING,
    reason=None,
    detail="",
    closed=True,
    n=1000,
    sealed_runs=4,
    prod=1000,
    cur=600,
    done=500,
    failed=20,
    acked=400,
    in_flight=64,
    waiting=3,
    suspects=0,
    payload_bytes=1 << 20,
    results_bytes=1 << 10,
    payload_mark_bytes=1 << 30,
    results_mark_bytes=1 << 29,
    prompt_tokens=7000,
    completion_tokens=3000,
    attempts=530,
    by_class={FailureClass.TIMEOUT: 5, FailureClass.BAD_REQUEST: 15},
    feeder=None,
    feeder_lost=False,
    cursor=b'{"line":1234,"offset":9,"place":1230,"ordinal":1200,"index":1000,"carried":200}',
    collector=Lease("t", "producer run, here pid 7", 20_000),
    redelivered=0,
    dup=0,
    stale=0,
    missing=0,
    proven=True,
    created_at_ms=1_000_000,
    started_at_ms=1_001_000,
    finished_at_ms=0,
    now_ms=1_090_000,
)
MANIFEST = Manifest(job="j1", epoch="e", name="in.jsonl", created_at_ms=1)


def snap(**changes: Any) -> JobSnapshot:
    return msgspec.structs.replace(RUNNING, **changes)


def test_counts_always_add_up():
    """total = ok + failed + waiting + in_flight + not_run, while it runs and when it was cancelled."""
    for state in (JobState.RUNNING, JobState.CANCELLED):
        s = _jobview.summarise(snap(state=state, in_flight=64))
        assert s.total == s.ok + s.failed + s.waiting + s.in_flight + s.not_run == 1000
        assert bool(s.not_run) == (state == JobState.CANCELLED)


def test_a_spent_budget_names_the_top_class():
    """Who reads it knows what to look for."""
    spent = snap(state=JobState.PAUSED, reason=PauseReason.BUDGET, detail="20 requests have failed, the limit is 20")
    told = _jobview.paused(spent, "go on")
    assert told == (
        "paused, too many requests failed: 20 requests have failed, the limit is 20, 15 of them bad_request. "
        "Look at them, then go on"
    )
    alike = msgspec.structs.replace(spent, by_class={FailureClass.TIMEOUT: 20})
    assert ", all of them timeout. " in _jobview.paused(alike, "go on")


def test_status_shows_the_deadline():
    """In UTC, with what is left of it; one that has passed says so until the job has been ended."""

    def shown(**changes: Any) -> str:
        text = "\n".join(_jobview.human(snap(deadline_ms=1_090_000 + 3_600_000, **changes), MANIFEST, 2))
        (line,) = [x for x in text.splitlines() if x.startswith("deadline")]
        return line

    assert shown() == "deadline   1970-01-01 01:18:10 UTC, in 1:00:00"
    assert shown(now_ms=5_000_000) == "deadline   1970-01-01 01:18:10 UTC, passed"
    assert shown(state=JobState.EXPIRED) == "deadline   1970-01-01 01:18:10 UTC"
    assert "deadline" not in "\n".join(_jobview.human(RUNNING, MANIFEST, 2))


def test_status_shows_failures_most_frequent_first():
    """Classes are ordered by count; leases name their holders."""
    text = "\n".join(_jobview.human(RUNNING, MANIFEST, 2))
    assert "bad_request 15, timeout 5" in text
    assert "collector  producer run, here pid 7" in text
    assert "2 daemons connected" in text
    assert "note" not in text


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        (PauseReason.CONFIG, "paused, the setup is at fault: no key. Mend it, then `producer resume j1` goes on"),
        (PauseReason.BUDGET, "paused, too many requests failed: no key, 15 of them bad_request. Look at them"),
        (PauseReason.STORE, "paused, storage is at fault: no key. Mend it"),
        (PauseReason.USER, "paused by a user (no key); `producer resume j1` goes on"),
    ],
)
def test_pause_says_who_has_to_act(reason: PauseReason, expected: str):
    """Each reason has its advice, and the detail that came with it."""
    (note,) = _jobview.notes(snap(state=JobState.PAUSED, reason=reason, detail="no key."), 1)
    assert note.startswith(expected)


@pytest.mark.parametrize(
    ("changes", "daemons", "expected"),
    [
        ({}, 1, []),
        ({}, 0, ["no daemon connected: start one with `gristmilld up`"]),
        ({"pool": "gpu"}, 0, ["no daemon connected: start one with `gristmilld up --pool gpu`"]),
        ({"feeder_lost": True}, 1, ["feeder lost at line 1,234: give the same `producer submit` again to go on"]),
        (
            {"collector": None, "results_bytes": 1 << 29},
            1,
            ["waiting for a collector: `producer results j1 -o OUT` takes the results"],
        ),
        ({"missing": 2}, 1, ["2 claimed requests had no payload in the store"]),
        ({"state": JobState.COMPLETE}, 0, []),
    ],
)
def test_notes_name_what_stands_in_the_way(changes: dict[str, Any], daemons: int, expected: list[str]):
    """Every note says what to do; a healthy or finished job has none."""
    assert _jobview.notes(snap(**changes), daemons) == expected


def test_job_of_a_run_is_not_sent_to_the_daemons():
    """A private job goes on with its own command, not with a daemon or `submit`."""
    assert _jobview.is_private(msgspec.structs.replace(MANIFEST, pool="j1"))
    (note,) = _jobview.notes(snap(feeder_lost=True), 0, private=True)
    assert "producer run" in note


def test_damaged_cursor_is_no_obstacle():
    """What cannot be read falls back to what has been sealed."""
    assert _jobview.lines_fed(snap(cursor=b"\xff")) == 1000
    assert _jobview.lines_fed(snap(cursor=b"")) == 0


def test_table_lines_up():
    """Columns start below their names, however long the ids are."""
    rows = [_jobview.row(RUNNING, MANIFEST), _jobview.row(snap(job="a-much-longer-id", n=None, closed=False), MANIFEST)]
    header, first, second = _jobview.table(rows)
    for line, state in ((first, "running"), (second, "running")):
        assert line.index(state) == header.index("STATE")
    assert "500/1,000" in first
    assert "500/1,000+" in second
