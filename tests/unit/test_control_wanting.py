"""What is done about a wish: another attempt only when it is due, nobody is at it, and the last one is gone."""

from __future__ import annotations

import pytest
from tests.support.outlet import snapshot

from gristmill.contract.lifecycle import JobState, PauseReason
from gristmill.contract.manifest import Manifest, Wishes
from gristmill.queue.replies import JobSnapshot
from gristmill.queue.wishes import Progress, Wish
from gristmilld.control.wanting import GRACE_S, MAX_FAILURES, Sight, Standing, is_due, is_open, next_attempt, wait_s

NONE = {wish: Progress() for wish in Wish}


def sight(**changes: object) -> Sight:
    values: dict = {
        "due": True,
        "held": False,
        "progress": Progress(attempt=3),
        "standing": Standing.ABSENT,
        "loose_for_s": 0.0,
        "now_ms": 1000,
    }
    return Sight(**(values | changes))


def manifest(**wishes: object) -> Manifest:
    return Manifest(job="j", epoch="e", name="n", created_at_ms=0, wishes=Wishes(**wishes))


@pytest.mark.parametrize(
    ("changes", "attempt"),
    [
        ({}, 4),
        ({"progress": Progress()}, 1),
        ({"due": False}, None),
        ({"held": True}, None),
        ({"held": True, "standing": Standing.LOOSE, "loose_for_s": 99.0}, None),
        ({"progress": Progress(attempt=3, not_before_ms=1001)}, None),
        ({"progress": Progress(attempt=3, not_before_ms=1000)}, 4),
        ({"standing": Standing.WAITING}, None),
        ({"standing": Standing.LOOSE, "loose_for_s": GRACE_S - 0.1}, None),
        ({"standing": Standing.LOOSE, "loose_for_s": GRACE_S}, 4),
    ],
)
def test_the_next_attempt(changes: dict, attempt: int | None):
    """A new number only for a wish that is due, that nobody holds, and whose last attempt ended or was lost."""
    assert next_attempt(sight(**changes)) == attempt


def state(state: JobState, **changes: object) -> JobSnapshot:
    return snapshot("j", state=state, n=None, done=0, **changes)


def test_feeding_is_due_until_the_input_is_in_or_the_job_has_ended():
    """A user's pause holds back claims, not the feeder; what the feeder itself paused for waits for a resume."""
    m = manifest(detached=True)
    broken = NONE | {Wish.FEED: Progress(error="it has changed")}
    assert is_due(Wish.FEED, m, state(JobState.RUNNING), NONE)
    assert is_due(Wish.FEED, m, state(JobState.PAUSED, reason=PauseReason.USER), broken)
    assert not is_due(Wish.FEED, m, state(JobState.PAUSED, reason=PauseReason.CONFIG), broken)
    assert is_due(Wish.FEED, m, state(JobState.PAUSED, reason=PauseReason.CONFIG), NONE)
    assert is_due(Wish.FEED, m, state(JobState.RUNNING), broken)
    for over in (JobState.CANCELLING, JobState.CANCELLED, JobState.EXPIRED, JobState.COMPLETE):
        assert not is_open(Wish.FEED, m, state(over), NONE)
    assert not is_open(Wish.FEED, m, state(JobState.RUNNING, closed=True), NONE)
    assert not is_open(Wish.FEED, manifest(), state(JobState.RUNNING), NONE)


def test_exporting_is_due_from_the_start_until_it_is_done():
    """While the job runs, too: so nothing waits in the store for its end."""
    m = manifest(output="/o")
    for any_state in (JobState.RUNNING, JobState.PAUSED, JobState.COMPLETE):
        assert is_due(Wish.EXPORT, m, state(any_state), NONE)
    assert not is_open(Wish.EXPORT, m, state(JobState.COMPLETE), NONE | {Wish.EXPORT: Progress(done=True)})


def test_a_webhook_is_due_at_the_end_and_after_the_export():
    """Whoever is told of the end may go and read the file."""
    both = manifest(output="/o", notify="https://h")
    exported = NONE | {Wish.EXPORT: Progress(done=True)}
    assert not is_due(Wish.NOTIFY, both, state(JobState.RUNNING), exported)
    assert not is_due(Wish.NOTIFY, both, state(JobState.COMPLETE), NONE)
    assert is_due(Wish.NOTIFY, both, state(JobState.COMPLETE), exported)
    assert is_due(Wish.NOTIFY, manifest(notify="https://h"), state(JobState.CANCELLED), NONE)
    given_up = NONE | {Wish.NOTIFY: Progress(failed=MAX_FAILURES)}
    assert not is_open(Wish.NOTIFY, manifest(notify="https://h"), state(JobState.COMPLETE), given_up)


def test_waits_grow_and_end():
    """Two seconds, doubling, a quarter of an hour at most."""
    assert [wait_s(n) for n in (1, 2, 3)] == [2.0, 4.0, 8.0]
    assert wait_s(50) == 900.0
