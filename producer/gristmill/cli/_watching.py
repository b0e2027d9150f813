"""Looks at a running job several times a second, shows progress, and returns when there is nothing more to wait for.

When nothing finishes for a while the endpoints are asked what is the matter, so that the display can name it. A store
that does not answer is waited for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from gristmill.cli._jobs import without_the_dead
from gristmill.cli._jobview import facts
from gristmill.cli._progress import STALL_S, Facts, Meter
from gristmill.cli._session import Store
from gristmill.cli._talk import Talk
from gristmill.contract.lifecycle import TERMINAL, JobState, PauseReason
from gristmill.preflight import Unusable, preflight
from gristmill.queue.connection import StoreDiskError
from gristmill.queue.leasequeue import LeaseQueue
from gristmill.queue.replies import JobSnapshot
from gristmill.queue.scene import look_around
from gristmill.queue.store import OUTAGES
from gristmill.queue.waiting import Reason, Wait, waits_for

PERIOD_S = 0.25
PROBE_PERIOD_S = 10.0
TOLD_AFTER_S = 1.0
LOOK_PERIOD_S = 1.0
PLAIN_REASONS = frozenset({Reason.RATE_LIMIT, Reason.ENDPOINT, Reason.COLLECTOR, Reason.DISK})
"""Told at once: somebody knows of them. The others may be a slow answer only, and are told after `STALL_S`."""


class Scale(msgspec.Struct, frozen=True):
    """What the total can be guessed from while the input is being read.

    Attributes:
        input_bytes: size of a plain input; 0 where it is compressed or not known.
        limit: no more lines than that.
    """

    input_bytes: int = 0
    limit: int | None = None


class _Place(msgspec.Struct):
    """The part of the feeder's cursor that progress needs."""

    offset: int = 0
    ordinal: int = 0
    carried: int = 0
    line: int = 0


def place_of(snapshot: JobSnapshot) -> _Place:
    """The feeder's place; the beginning where none is readable."""
    try:
        return msgspec.json.decode(snapshot.cursor, type=_Place) if snapshot.cursor else _Place()
    except msgspec.MsgspecError:
        return _Place(ordinal=snapshot.prod)


def scaled(seen: Facts, snapshot: JobSnapshot, scale: Scale, carried: int) -> Facts:
    """`seen` with carried lines and the total, or a guess at it."""
    place = place_of(snapshot)
    total = None if snapshot.n is None else snapshot.n + carried
    guess = None
    if total is None and scale.input_bytes and place.offset:
        guess = max(place.ordinal, round(place.ordinal * scale.input_bytes / place.offset))
    if total is None and scale.limit is not None:
        guess = scale.limit if guess is None else min(guess, scale.limit)
    return msgspec.structs.replace(seen, carried=carried, total=total, guessed_total=guess, fed=place.ordinal)


class Watcher:
    """Watches one job for one command.

    Attributes:
        snapshot: the last one; None before the first.
        draining, finalizing: set by the command to say what it is doing.
    """

    def __init__(
        self,
        queue: LeaseQueue,
        store: Store,
        talk: Talk,
        *,
        scale: Scale = Scale(),
        urls: list[str] | None = None,
        key: str | None = None,
        ends_paused: Callable[[JobSnapshot], bool] = lambda _: False,
        trouble: Callable[[], Awaitable[str]] | None = None,
        carried: Callable[[], int] | None = None,
    ) -> None:
        self._queue = queue
        self._store = store
        self._talk = talk
        self._scale = scale
        self._urls = urls or []
        self._key = key
        self._ends_paused = ends_paused
        self._trouble = trouble
        self._carried = carried
        self._meter = Meter(time.monotonic())
        self._probe: asyncio.Task[str] | None = None
        self._probed_s = float("-inf")
        self._endpoint_trouble = ""
        self._wait: Wait | None = None
        self._looked_s = float("-inf")
        self.snapshot: JobSnapshot | None = None
        self.draining = False
        self.finalizing = False

    async def run(self) -> JobSnapshot:
        """Show progress until the job has ended, or is paused for a reason that ends the command."""
        while True:
            snapshot = await self.look()
            if snapshot is not None and (snapshot.state in TERMINAL or self._ends_paused(snapshot)):
                return snapshot
            await asyncio.sleep(PERIOD_S)

    async def look(self) -> JobSnapshot | None:
        """One look at the job, shown; None while the store does not answer."""
        try:
            snapshot = self.snapshot = await self._look_at_job()
            trouble = (await self._trouble() if self._trouble else "") or await self._named(snapshot)
        except OUTAGES as error:
            if self.snapshot is not None:
                self._show(self.snapshot, _ailment(error))
            return None
        self._show(snapshot, trouble)
        return snapshot

    async def _look_at_job(self) -> JobSnapshot:
        """A snapshot; a job whose deadline has passed is ended here, too: there may be no daemon to do it."""
        snapshot = await self._queue.snapshot()
        if snapshot.is_late and snapshot.state not in TERMINAL:
            await self._queue.expire()
            snapshot = await self._queue.snapshot()
        return without_the_dead(snapshot)

    def _show(self, snapshot: JobSnapshot, trouble: str) -> None:
        carried = self._carried() if self._carried else place_of(snapshot).carried
        seen = scaled(facts(snapshot, time.monotonic(), trouble), snapshot, self._scale, carried)
        self._talk.show(
            self._meter.view(msgspec.structs.replace(seen, draining=self.draining, finalizing=self.finalizing))
        )

    async def _named(self, snapshot: JobSnapshot) -> str:
        """What stands in the way, once nothing has finished for a moment; at length after a longer one."""
        idle_s = self._meter.stalled_s(time.monotonic())
        if idle_s < TOLD_AFTER_S:
            self._wait, self._looked_s = None, float("-inf")
            return ""
        if time.monotonic() - self._looked_s >= LOOK_PERIOD_S:
            self._looked_s = time.monotonic()
            around = await look_around(self._store.redis, self._queue, snapshot, oldest=idle_s >= STALL_S)
            self._wait = waits_for(around)
        if self._wait is not None and self._wait.reason in PLAIN_REASONS:
            return self._wait.what
        own = self._endpoints(snapshot)
        if own or self._wait is None or idle_s < STALL_S:
            return own
        return f"{self._wait.what}; nothing has finished for {idle_s:.0f} s"

    def _endpoints(self, snapshot: JobSnapshot) -> str:
        """What the endpoints say when nothing finishes; asked in the background."""
        now_s = time.monotonic()
        if self._probe is not None and self._probe.done():
            self._endpoint_trouble = self._probe.result()
            self._probe = None
        if snapshot.state != JobState.RUNNING or self._meter.stalled_s(now_s) < STALL_S or not self._urls:
            self._endpoint_trouble = ""
        elif self._probe is None and now_s - self._probed_s >= PROBE_PERIOD_S:
            self._probed_s = now_s
            self._probe = asyncio.create_task(self._ask_endpoints())
        return self._endpoint_trouble

    async def _ask_endpoints(self) -> str:
        """What is wrong with all endpoints; empty when at least one can be worked with."""
        verdicts = await asyncio.to_thread(preflight, self._urls, self._key)
        sick = [v.problem for v in verdicts if isinstance(v, Unusable)]
        return sick[0] if len(sick) == len(verdicts) else ""


def _ailment(error: Exception) -> str:
    """What is waited for while the store answers with `error`."""
    if isinstance(error, StoreDiskError):
        return "room on the store's disk: it can't write its log, and refuses writes"
    return f"the store ({type(error).__name__})"


def needs_somebody(snapshot: JobSnapshot) -> bool:
    """Whether the job is paused until a person acts; a user's own pause is only waited for."""
    return snapshot.state == JobState.PAUSED and snapshot.reason not in {None, PauseReason.USER}


def plain_bytes(path: Path) -> int:
    """Size of an input whose offsets are those of the file; 0 where it is compressed."""
    with path.open("rb") as file:
        head = file.read(4)
    return 0 if head[:2] == b"\x1f\x8b" or head == b"\x28\xb5\x2f\xfd" else path.stat().st_size
