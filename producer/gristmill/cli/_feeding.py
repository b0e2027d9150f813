"""Keeps a feeder going: starts it, passes its warnings on, and starts it anew when it dies.

A feeder resumes at the last sealed run, so a death costs a few lines of reading. It is given up after several deaths
in a row without a line of progress: then it is the input that kills it.
"""

from __future__ import annotations

import signal
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable

import msgspec

from gristmill.cli import _children
from gristmill.cli._early import EarlyFeeder
from gristmill.queue.store import OUTAGES

MAX_DEATHS = 5
STOP_PATIENCE_S = 10.0


class FeederEnd(msgspec.Struct, frozen=True):
    """How feeding ended: exit code 0 (read to the end), 2 (input refused) or 1; `message` says why when not 0.

    `told` says that the feeder's own words have been passed on already.
    """

    code: int
    message: str = ""
    told: bool = False


class FeederKeeper:
    """One feeder at a time, until it has ended by itself or `stop` is called.

    Args:
        spec: JSON for its stdin.
        line: tells how far the job has been fed, for messages and for progress.
        tell: hears its warnings.
        keep: descriptors that it inherits.
        early: the first one, where it runs already.
    """

    def __init__(
        self,
        spec: bytes,
        line: Callable[[], Awaitable[int]],
        tell: Callable[[str], None],
        keep: tuple[int, ...] = (),
        early: EarlyFeeder | None = None,
    ) -> None:
        self._spec = spec
        self._line = line
        self._tell = tell
        self._keep = keep
        self._early = early or EarlyFeeder()
        self._process: Process | None = None
        self._stopping = False
        self._last_words = ""

    async def run(self) -> FeederEnd:
        """Feed to the end; restart after each death. A stopped one ends with code 0."""
        deaths, best = 0, await self._place(0)
        while True:
            self._process = self._early.take() or await _children.launch_feeder(self._keep)
            await _children.brief(self._process, self._spec)
            code, _ = await _children.follow(self._process, self._heard)
            if self._stopping or code in {0, 1, 2}:
                return FeederEnd(0) if self._stopping or code == 0 else FeederEnd(code, self._last_words, told=True)
            line = await self._place(best)
            deaths, best = (1 if line > best else deaths + 1), max(line, best)
            how = _children.describe_exit(code)
            if deaths >= MAX_DEATHS:
                return FeederEnd(
                    1, f"feeder lost at line {line:,} for the {deaths}th time ({how}): see the lines there"
                )
            self._tell(f"feeder lost at line {line:,} ({how}); resuming")

    async def again(self) -> FeederEnd:
        """Feed what the store has lost although it had been fed to the end; as `run`."""
        self._tell("the store has lost the end of the input: feeding it again")
        return await self.run()

    async def _place(self, known: int) -> int:
        """How far the job has been fed; `known` while the store is away, since whoever killed one may kill both."""
        try:
            return await self._line()
        except OUTAGES:
            return known

    async def stop(self) -> None:
        """End the feeder; what it has sealed stays. Returns when it has ended; may be called twice, or too early."""
        self._stopping = True
        if self._process is not None:
            await _children.stop(self._process, STOP_PATIENCE_S)

    def kill(self) -> None:
        """End it at once."""
        self._stopping = True
        if self._process is not None:
            _children.send(self._process, signal.SIGKILL)

    def _heard(self, line: str) -> None:
        self._last_words = line
        self._tell(line)
