"""The part of a run in which everything moves at once: feeder, daemon, collector and display, until the first reason to
end; then they are stopped in the order that loses nothing.

Stopping: the feeder first (nothing new comes in), then the daemon (answers in flight come back or are put back), then
what lies in the store is collected. Each stage is bounded in time, and a kill in any of them loses nothing either:
it only leaves more for the next run to do.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from enum import StrEnum
from typing import Any

import msgspec

from gristmill.cli._daemon import DaemonKeeper
from gristmill.cli._feeding import FeederKeeper
from gristmill.cli._watching import Watcher
from gristmill.contract.lifecycle import TERMINAL, JobState, PauseReason
from gristmill.outlet.collector import Until, collect
from gristmill.outlet.errors import DiskError
from gristmill.outlet.workdir import Work
from gristmill.queue.errors import JobNotFoundError
from gristmill.queue.leasequeue import LeaseQueue
from gristmill.queue.store import OUTAGES

DRAIN_PATIENCE_S = 45.0
"""The daemon gives its requests in flight 30 s to end, then puts them back."""

STOP_PATIENCE_S = 5.0
"""A daemon whose job has ended has nothing to drain: one that takes longer hangs."""

REOPENED_PERIOD_S = 2.0


class End(StrEnum):
    """Why the work ended."""

    FINISHED = "finished"
    """The job is in a terminal state and all its results are durable."""
    PAUSED = "paused"
    INTERRUPTED = "interrupted"
    FEEDER = "feeder"
    DAEMON = "daemon"
    DISK = "disk"


class Outcome(msgspec.Struct, frozen=True):
    """Attributes: `message` what to tell, unless it was `told` before; `fed` whether the feeder came to the end of
    INPUT; `code` the feeder's; `rolled_back` whether the store lost a suffix, so that its counters may differ."""

    end: End
    message: str = ""
    fed: bool = False
    code: int = 1
    rolled_back: bool = False
    told: bool = False


class Crew:
    """Feeder, daemon, collector and display of one job; any of the first two may be absent.

    A `private` job has no other workers, so it is paused when the work ends early; another one goes on without us.
    `run` may be called once; afterwards every process has ended.
    """

    def __init__(
        self,
        queue: LeaseQueue,
        work: Work,
        watcher: Watcher,
        *,
        token: str,
        holder: str,
        feeder: FeederKeeper | None = None,
        daemon: DaemonKeeper | None = None,
        grow: Callable[[], object] | None = None,
        take: bool = True,
        until: Until = Until.FINISHED,
        private: bool = True,
    ) -> None:
        self._queue = queue
        self._work = work
        self._watcher = watcher
        self._token = token
        self._holder = holder
        self._feeder = feeder
        self._daemon = daemon
        self._grow = grow
        self._take = take
        self._until = until
        self._private = private
        self._fed = feeder is None
        self._rolled_back = False
        self._stop_collector = asyncio.Event()
        self._first: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    async def run(self, asked: asyncio.Event) -> Outcome:
        """Work until the first reason to end, or until `asked` is set; then stop everything in order.

        Raises:
            CollectorBusyError, LeaseLostError: another collector has the job.
            JobNotFoundError: the job was removed.
        """
        collector = asyncio.create_task(self._reporting(self._mind_collector()))
        display = asyncio.create_task(self._reporting(self._mind_display()))
        others = [
            asyncio.create_task(self._reporting(minder))
            for minder in (self._mind_feeder(), self._mind_daemon(), self._mind_signal(asked))
        ]
        try:
            outcome = await self._first
            for task in others:
                task.cancel()
            return await self._wind_down(outcome, collector)
        finally:
            self.kill()
            for task in (collector, display, *others):
                task.cancel()
            await asyncio.gather(collector, display, *others, return_exceptions=True)

    def kill(self) -> None:
        """End every process that still runs at once."""
        if self._feeder is not None:
            self._feeder.kill()
        if self._daemon is not None:
            self._daemon.kill()

    # --- until the first reason to end

    def _end(self, end: End, message: str = "", code: int = 1, *, told: bool = False) -> None:
        if not self._first.done():
            self._first.set_result(Outcome(end, message, code=code, told=told))

    async def _reporting(self, minder: Coroutine[Any, Any, None]) -> None:
        """Run `minder`; what it raises ends the work."""
        try:
            await minder
        except Exception as error:  # noqa: BLE001  it is raised again by whoever awaits `_first`
            if not self._first.done():
                self._first.set_exception(error)

    async def _mind_collector(self) -> None:
        try:
            if await self._collect(self._until):
                self._end(End.FINISHED)
        except DiskError as error:
            self._end(End.DISK, str(error))
        except BrokenPipeError:
            self._end(End.INTERRUPTED, "standard output was closed")

    async def _mind_display(self) -> None:
        snapshot = await self._watcher.run()
        if snapshot.state not in TERMINAL:
            self._end(End.PAUSED)

    async def _mind_feeder(self) -> None:
        if self._feeder is None:
            return
        end = await self._feeder.run()
        while end.code == 0:
            self._fed = True
            await self._until_opened_again()
            self._fed = False
            end = await self._feeder.again()
        self._end(End.FEEDER, end.message, end.code, told=end.told)

    async def _until_opened_again(self) -> None:
        """Return once the store has lost the end of the input, which had been fed (a failover, a power cut)."""
        while True:
            await asyncio.sleep(REOPENED_PERIOD_S)
            with contextlib.suppress(JobNotFoundError, *OUTAGES):
                seen = await self._queue.snapshot()
                if not seen.closed and seen.state in {JobState.RUNNING, JobState.PAUSED}:
                    return

    async def _mind_daemon(self) -> None:
        if self._daemon is None:
            return
        end = await self._daemon.run()
        seen = self._watcher.snapshot
        if end is not None and (seen is None or seen.state not in TERMINAL):
            self._end(End.DAEMON, end.message, end.code)

    async def _mind_signal(self, asked: asyncio.Event) -> None:
        await asked.wait()
        self._end(End.INTERRUPTED)

    async def _collect(self, until: Until) -> bool:
        done = await collect(
            self._queue,
            self._work,
            token=self._token,
            holder=self._holder,
            until=until,
            stop=self._stop_collector,
            take=self._take,
            grow=self._grow,
        )
        self._rolled_back |= done.rolled_back
        return done.finished

    # --- in order

    async def _wind_down(self, outcome: Outcome, collector: asyncio.Task[None]) -> Outcome:
        """Stop feeder and daemon, collect what is left, and leave the job in a state that says why."""
        fed = self._fed
        self._watcher.draining = outcome.end != End.FINISHED
        await self._hold_back(outcome)
        if self._feeder is not None:
            await self._feeder.stop()
        if self._daemon is not None:
            await self._daemon.stop(DRAIN_PATIENCE_S if self._watcher.draining else STOP_PATIENCE_S)
        self._stop_collector.set()
        await collector
        if outcome.end not in {End.FINISHED, End.DISK}:
            outcome = await self._collect_rest(outcome)
        fed = fed or (outcome.end == End.FINISHED and await self._is_complete())
        return msgspec.structs.replace(outcome, fed=fed, rolled_back=self._rolled_back)

    async def _is_complete(self) -> bool:
        """Whether the store says so. Then the feeder had read all of INPUT, though its process may not have ended
        when the last result came in; with nothing to send it never has."""
        with contextlib.suppress(JobNotFoundError, *OUTAGES):
            return (await self._queue.snapshot()).state == JobState.COMPLETE
        return False

    async def _hold_back(self, outcome: Outcome) -> None:
        """Pause the job for the reason that ended the work, so that whoever looks at it later knows."""
        reason = PauseReason.STORE if outcome.end == End.DISK else PauseReason.USER
        detail = outcome.message.partition("\n")[0] or "interrupted"
        if outcome.end in {End.FINISHED, End.PAUSED} or not self._private:
            return
        with contextlib.suppress(JobNotFoundError, *OUTAGES):
            await self._queue.pause(reason, detail)

    async def _collect_rest(self, outcome: Outcome) -> Outcome:
        """Take what came in until the daemon had ended; when that was the last of the job, the work is finished."""
        self._stop_collector.clear()
        try:
            await asyncio.wait_for(self._collect(Until.DRAINED), DRAIN_PATIENCE_S)
            snapshot = await self._queue.snapshot()
        except DiskError as error:
            return Outcome(End.DISK, str(error))
        except OUTAGES:  # a time-out, too
            return outcome  # the store is away: the next run takes them
        return Outcome(End.FINISHED) if snapshot.state == JobState.COMPLETE else outcome
