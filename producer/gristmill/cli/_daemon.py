"""Keeps the private daemon of a run going: starts it, and starts it anew when it dies.

The workers die with their supervisor, and the job is theirs alone, so what they held is given to the new ones at once
instead of when their leases end. A daemon that refuses its settings, or that dies several times without a request done
in between, is given up.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from gristmill.cli import _children
from gristmill.cli._daemonlog import DaemonLog
from gristmill.cli._errors import ExitCode
from gristmill.queue.errors import JobNotFoundError
from gristmill.queue.leasequeue import LeaseQueue
from gristmill.queue.store import OUTAGES

MAX_DEATHS = 5


class DaemonEnd(msgspec.Struct, frozen=True):
    """Why there is no daemon any more, and the exit code that says so."""

    message: str
    code: int


class DaemonKeeper:
    """One daemon at a time, until it is given up or `stop` is called.

    Args:
        start: starts a daemon.
        queue: the job, to give back what a dead daemon's workers held.
        tell: says what happened, above the progress; also what the daemon's supervisor warns of.
        log: the file that the daemon writes to.
    """

    def __init__(
        self, start: Callable[[], Awaitable[Process]], queue: LeaseQueue, tell: Callable[[str], None], log: Path
    ) -> None:
        self._start = start
        self._queue = queue
        self._tell = tell
        self._log = log
        self._process: Process | None = None
        self._stopping = False

    async def run(self) -> DaemonEnd | None:
        """Keep a daemon running; why it was given up, or None when it was stopped."""
        listening = asyncio.create_task(DaemonLog(self._log, self._tell).follow())
        try:
            return await self._keep()
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    async def _keep(self) -> DaemonEnd | None:
        deaths, best = 0, 0
        while True:
            self._process = await self._start()
            code = await self._process.wait()
            if self._stopping:
                return None
            done = await self._after_death()
            deaths, best = (1 if done > best else deaths + 1), max(done, best)
            how = _children.describe_exit(code)
            if deaths >= MAX_DEATHS or code in {ExitCode.USAGE, ExitCode.PAUSED}:
                message = f"the daemon ended unexpectedly ({how}){_children.log_tail(self._log)}"
                return DaemonEnd(message, code if code in {ExitCode.USAGE, ExitCode.PAUSED} else ExitCode.PAUSED)
            self._tell(f"the daemon ended unexpectedly ({how}); starting it anew")

    async def _after_death(self) -> int:
        """Give back what its workers held; how many requests are done."""
        with contextlib.suppress(JobNotFoundError, *OUTAGES):
            for token in await self._queue.tokens():
                await self._queue.reap(token, force=True, crashed=False)
            return (await self._queue.snapshot()).done
        return 0

    async def stop(self, patience_s: float) -> None:
        """End it in order within `patience_s`, else at once. Returns when it has ended; may be called twice."""
        self._stopping = True
        if self._process is not None:
            await _children.stop(self._process, patience_s)

    def kill(self) -> None:
        """End it at once."""
        self._stopping = True
        if self._process is not None:
            _children.send(self._process, signal.SIGKILL)
