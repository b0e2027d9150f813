"""PURE: what a job is waiting for, decided from one look at it and its surroundings.

A job that stands still must not look like a slow one: whoever shows it names what it waits for, and all of them (the
progress of a command, `producer status`, the daemon's log and its metric) say the same, for they ask here. What comes
first is what has to change first: a person, the store, a daemon, then what keeps requests from being handed out, then
what keeps answers from coming.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from gristmill.contract.lifecycle import TERMINAL, JobState
from gristmill.queue.board import Board, Notice
from gristmill.queue.feedstats import FeedStats
from gristmill.queue.registry import DaemonInfo
from gristmill.queue.replies import JobSnapshot
from gristmill.queue.stragglers import Straggler

CRASH_LOOP = 4
"""So many crashes within a minute are worth a word: isolating one request that kills workers takes a few."""
_DISK_WORDS = ("MISCONF", "No space left", "disk")


class Reason(StrEnum):
    """What is waited for; a label of the metric."""

    PERSON = "person"
    """The job is paused: somebody has to act."""
    STORE = "store"
    DISK = "disk"
    """The store cannot write its log."""
    DAEMON = "daemon"
    """None is connected that may work on the job."""
    FEEDER = "feeder"
    COLLECTOR = "collector"
    """Results lie in the store up to their mark."""
    RATE_LIMIT = "rate_limit"
    ENDPOINT = "endpoint"
    """It can't be reached."""
    MAX_IN_FLIGHT = "max_in_flight"
    """The job's own limit is reached; its oldest request tells why that lasts."""
    STRAGGLER = "straggler"
    """Answers to what is in flight, and nothing is known to be wrong."""
    RETRY = "retry"
    """All that is left waits for its next attempt."""
    WORKERS = "workers"
    """There is work and there are daemons, but nothing is claimed: they are busy with other jobs, or stuck."""


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """A job and its surroundings at one moment.

    Attributes:
        job: the snapshot.
        board: the notices of the job's pool.
        daemons: the live ones of the pool.
        feed: what its feeder says, or None where none speaks.
        oldest: the request that was started first of those in flight, where somebody has looked.
        store: what the store said when it refused; empty when all is well.
    """

    job: JobSnapshot
    board: Board | None = None
    daemons: Sequence[DaemonInfo] = ()
    feed: FeedStats | None = None
    oldest: Straggler | None = None
    store: str = ""


class Wait(msgspec.Struct, frozen=True):
    """Attributes: `what` completes "waiting for ...", without a full stop."""

    reason: Reason
    what: str


def idle_s(job: JobSnapshot) -> float:
    """For how long no request of the job has finished: since the last one, the last resume, or its creation."""
    return max(0, job.now_ms - max(job.progress_at_ms, job.created_at_ms)) / 1000


def waits_for(scene: Scene) -> Wait | None:
    """What the job waits for now, however long; None when it has ended."""
    job = scene.job
    if job.state in TERMINAL or job.state is JobState.DELETING:
        return None
    for look in (_outside, _supply, _endpoints):
        wait = look(scene)
        if wait is not None:
            return wait
    return _answers(scene)


def _outside(scene: Scene) -> Wait | None:
    """Somebody or something outside has to change first."""
    job = scene.job
    if scene.store:
        disk = any(word in scene.store for word in _DISK_WORDS)
        what = "room on the store's disk" if disk else f"the store ({scene.store})"
        return Wait(Reason.DISK if disk else Reason.STORE, what)
    if job.state is JobState.PAUSED:
        detail = f": {job.detail}" if job.detail else ""
        return Wait(Reason.PERSON, f"a person, it is paused ({job.reason or 'user'}){detail}".rstrip("."))
    if not scene.daemons and (job.done < job.prod or job.in_flight):
        return Wait(Reason.DAEMON, "a daemon: none is connected, start one with `gristmilld up`")
    return None


def _supply(scene: Scene) -> Wait | None:
    """Nothing can be handed out: results fill the store, or there is no input."""
    job = scene.job
    if job.results_bytes > job.results_mark_bytes and (job.fresh or not job.closed) and not job.in_flight:
        if job.collector is None:
            return Wait(Reason.COLLECTOR, f"a collector: `producer results {job.job} -o OUT` takes the results")
        return Wait(Reason.COLLECTOR, f"its collector ({job.collector.holder}) to take results")
    if job.closed or job.done < job.prod or job.in_flight or job.state is JobState.CANCELLING:
        return None
    if scene.feed is not None and scene.feed.waiting:
        return Wait(Reason.STORE, "room in the store, which takes no more input though it holds none")
    if job.feeder is not None:
        return Wait(Reason.FEEDER, f"its feeder ({job.feeder.holder}) to read more of the input")
    return Wait(Reason.FEEDER, "a feeder: the same `producer submit` goes on" if job.feeder_lost else "its feeder")


def _endpoints(scene: Scene) -> Wait | None:
    """What workers say on the board."""
    if scene.board is None:
        return None
    cooling = [n for n in scene.board.notices if n.state == "cooling" and n.until_ms > scene.board.now_ms]
    if cooling:
        last: Notice = max(cooling, key=lambda n: n.until_ms)
        wait_s = (last.until_ms - scene.board.now_ms) / 1000
        return Wait(Reason.RATE_LIMIT, f"{last.endpoint}, which limits the rate and asks to wait {wait_s:.0f} s")
    down = sorted({n.endpoint for n in scene.board.notices if n.state == "down"})
    return Wait(Reason.ENDPOINT, f"{', '.join(down)}, which can't be reached") if down else None


def _answers(scene: Scene) -> Wait:
    """What is under way, or should be."""
    job = scene.job
    crashes = sum(daemon.recent_crashes for daemon in scene.daemons)
    if crashes >= CRASH_LOOP:
        return Wait(Reason.WORKERS, f"workers that crash, {crashes} times in the last minute: see the daemon's log")
    count = "1 request" if job.in_flight == 1 else f"{job.in_flight:,} requests"
    if job.in_flight:
        limit = job.max_in_flight
        at_limit = 0 < limit <= job.in_flight and (job.fresh > 0 or job.waiting > 0)
        what = f"answers to {count}" + (f" (--max-in-flight {limit})" if at_limit else "")
        return Wait(Reason.MAX_IN_FLIGHT if at_limit else Reason.STRAGGLER, what + _oldest(scene))
    if job.waiting and not job.fresh:
        waiting = "1 request" if job.waiting == 1 else f"{job.waiting:,} requests"
        return Wait(Reason.RETRY, f"the next attempt of {waiting}")
    if job.state is JobState.CANCELLING or job.done >= job.prod:
        return Wait(Reason.WORKERS, "a daemon to notice that nothing is left")
    return Wait(Reason.WORKERS, "the workers, who are busy with other jobs or stuck")


def _oldest(scene: Scene) -> str:
    """Which request is the oldest, for how long, and where."""
    oldest = scene.oldest
    if oldest is None:
        return ""
    age_s = max(0, scene.job.now_ms - oldest.first_ms) // 1000
    where = f"with worker {oldest.holder}{_host(oldest, scene.daemons)}" if oldest.holder else "waiting for its turn"
    return f"; the oldest, index {oldest.index}, was started {age_s:,} s ago and is {where}"


def _host(oldest: Straggler, daemons: Sequence[DaemonInfo]) -> str:
    """Tokens begin with their daemon's id."""
    hosts = [d.host for d in daemons if oldest.holder.startswith(f"{d.daemon_id}.")]
    return f" on {hosts[0]}" if hosts else ""
