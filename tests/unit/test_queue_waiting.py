"""What a job waits for, from a look at it and its surroundings: one answer, the one that has to change first."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.test_cli_jobview import RUNNING

from gristmill.contract.lifecycle import JobState, PauseReason
from gristmill.queue.board import Board, Notice
from gristmill.queue.feedstats import FeedStats
from gristmill.queue.registry import DaemonInfo
from gristmill.queue.replies import JobSnapshot, Lease
from gristmill.queue.stragglers import Straggler
from gristmill.queue.waiting import Reason, Scene, idle_s, waits_for

NOW_MS = 1_090_000
JOB = msgspec.structs.replace(
    RUNNING, now_ms=NOW_MS, prod=1000, cur=600, done=590, in_flight=10, waiting=0, suspects=0, results_bytes=0
)
DAEMON = DaemonInfo(daemon_id="d1", host="mill-3", pid=7, version="0", pool="p", workers=2, slots=64, started_at_ms=1)
STARVED: dict[str, Any] = {"closed": False, "n": None, "done": 1000, "cur": 1000, "in_flight": 0}
FULL: dict[str, Any] = {"results_bytes": 2000, "results_mark_bytes": 1000, "in_flight": 0, "done": 600}


def scene(*, board: list[Notice] | None = None, around: dict[str, Any] | None = None, **job: Any) -> Scene:
    settings = {"daemons": [DAEMON], "board": Board(NOW_MS, board or [])} | (around or {})
    return Scene(job=msgspec.structs.replace(JOB, **job), **settings)


def notice(state: str, url: str = "http://a/v1", wait_s: float = 30) -> Notice:
    return Notice(url, state, NOW_MS + int(wait_s * 1000), NOW_MS)


CASES: list[tuple[Scene, Reason, str]] = [
    (scene(), Reason.STRAGGLER, "answers to 10 requests"),
    (scene(in_flight=1), Reason.STRAGGLER, "answers to 1 request"),
    (
        scene(around={"oldest": Straggler(42, NOW_MS - 3_000_000, 1, "d1.0.2.0")}),
        Reason.STRAGGLER,
        "answers to 10 requests; the oldest, index 42, was started 3,000 s ago and is with worker d1.0.2.0 on mill-3",
    ),
    (scene(max_in_flight=10), Reason.MAX_IN_FLIGHT, "answers to 10 requests (--max-in-flight 10)"),
    (scene(max_in_flight=10, cur=1000, done=990), Reason.STRAGGLER, "answers to 10 requests"),
    (scene(in_flight=0), Reason.WORKERS, "the workers, who are busy with other jobs or stuck"),
    (scene(in_flight=0, cur=1000, waiting=410), Reason.RETRY, "the next attempt of 410 requests"),
    (scene(board=[notice("cooling")]), Reason.RATE_LIMIT, "http://a/v1, which limits the rate and asks to wait 30 s"),
    (scene(board=[notice("cooling", wait_s=-1)]), Reason.STRAGGLER, "answers to 10 requests"),
    (
        scene(board=[notice("down", "http://b/v1"), notice("down"), notice("down")]),
        Reason.ENDPOINT,
        "http://a/v1, http://b/v1, which can't be reached",
    ),
    (scene(board=[notice("down"), notice("cooling", "http://b/v1", 5)]), Reason.RATE_LIMIT, "http://b/v1, which"),
    (scene(around={"daemons": []}), Reason.DAEMON, "a daemon: none is connected"),
    (scene(collector=None, **FULL), Reason.COLLECTOR, "a collector: `producer results j1 -o OUT`"),
    (scene(**FULL), Reason.COLLECTOR, "its collector (producer run, here pid 7) to take results"),
    (scene(**{**FULL, "in_flight": 3}), Reason.STRAGGLER, "answers to 3 requests"),
    (scene(feeder=None, feeder_lost=True, **STARVED), Reason.FEEDER, "a feeder: the same `producer submit` goes on"),
    (scene(feeder=Lease("t", "submit, pid 3", 9), **STARVED), Reason.FEEDER, "its feeder (submit, pid 3) to read more"),
    (
        scene(feeder=Lease("t", "h", 9), around={"feed": FeedStats(waiting=True)}, **STARVED),
        Reason.STORE,
        "room in the store",
    ),
    (scene(feeder=None, around={"daemons": []}, **STARVED), Reason.FEEDER, "its feeder"),
    (scene(state=JobState.PAUSED, reason=PauseReason.BUDGET, detail="too many."), Reason.PERSON,
     "a person, it is paused (budget): too many"),
    (scene(state=JobState.PAUSED, around={"daemons": []}), Reason.PERSON, "a person, it is paused (user)"),
    (scene(around={"daemons": [DAEMON, msgspec.structs.replace(DAEMON, recent_crashes=6)]}), Reason.WORKERS,
     "workers that crash, 6 times in the last minute"),
    (scene(state=JobState.CANCELLING), Reason.STRAGGLER, "answers to 10 requests"),
    (scene(state=JobState.CANCELLING, in_flight=0), Reason.WORKERS, "a daemon to notice that nothing is left"),
    (scene(around={"store": "OOM command not allowed"}), Reason.STORE, "the store (OOM command not allowed)"),
    (scene(around={"store": "MISCONF Errors writing to the AOF file"}), Reason.DISK, "room on the store's disk"),
]  # fmt: skip


@pytest.mark.parametrize(("seen", "reason", "what"), CASES, ids=lambda x: str(x)[:60] if isinstance(x, str) else "")
def test_each_trouble_has_its_name(seen: Scene, reason: Reason, what: str):
    """The reason is the metric's label, the words complete "waiting for"."""
    wait = waits_for(seen)
    assert wait is not None
    assert (wait.reason, wait.what[: len(what)]) == (reason, what)
    assert not wait.what.endswith(".")


def test_every_reason_is_reached():
    """None is named that nobody ever sees."""
    assert {reason for _, reason, _ in CASES} == set(Reason)


@pytest.mark.parametrize("state", [JobState.COMPLETE, JobState.CANCELLED, JobState.EXPIRED, JobState.DELETING])
def test_a_job_that_has_ended_waits_for_nothing(state: JobState):
    """Whatever else is wrong."""
    assert waits_for(scene(state=state, around={"daemons": [], "store": "gone"})) is None


@given(
    state=st.sampled_from([JobState.RUNNING, JobState.PAUSED, JobState.CANCELLING]),
    numbers=st.tuples(*[st.integers(0, 3)] * 4),
    closed=st.booleans(),
    leases=st.tuples(st.booleans(), st.booleans()),
    daemons=st.booleans(),
    limit=st.integers(0, 2),
)
def test_a_job_that_goes_on_always_has_an_answer(
    state: JobState,
    numbers: tuple[int, ...],
    closed: bool,
    leases: tuple[bool, bool],
    daemons: bool,
    limit: int,
):
    """However odd the counts are."""
    done, in_flight, waiting, fresh = numbers
    prod = done + in_flight + waiting + fresh
    lease = Lease("t", "h", 1)
    job: JobSnapshot = msgspec.structs.replace(
        JOB, state=state, closed=closed, prod=prod, cur=prod - fresh, done=done, in_flight=in_flight, waiting=waiting,
        max_in_flight=limit, feeder=lease if leases[0] else None, collector=lease if leases[1] else None,
    )  # fmt: skip
    wait = waits_for(Scene(job=job, daemons=[DAEMON] if daemons else []))
    assert wait is not None
    assert wait.what


def test_idleness_counts_from_the_last_finish_the_resume_or_the_creation():
    """On the store's clock, and never below zero."""
    assert idle_s(msgspec.structs.replace(JOB, created_at_ms=NOW_MS - 9000, progress_at_ms=0)) == 9
    assert idle_s(msgspec.structs.replace(JOB, created_at_ms=0, progress_at_ms=NOW_MS - 500)) == 0.5
    assert idle_s(msgspec.structs.replace(JOB, progress_at_ms=NOW_MS + 5)) == 0
