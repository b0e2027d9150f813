"""A feeder that is started before there is anything to feed.

Its imports take as long as all that a command does until it has a job, so both are done at the same time: the command
starts it first, before its own imports. A command that comes to need none ends it.
"""

from __future__ import annotations

import contextlib
import signal
from asyncio.subprocess import Process
from collections.abc import AsyncIterator

from gristmill.cli import _children


class EarlyFeeder:
    """A feeder without a spec, for one taker."""

    def __init__(self, process: Process | None = None) -> None:
        self._process = process

    def take(self) -> Process | None:
        """The process, which is the caller's from now on; None where there is none (any more)."""
        process, self._process = self._process, None
        return process


@contextlib.asynccontextmanager
async def early_feeder() -> AsyncIterator[EarlyFeeder]:
    """Start a feeder; when nobody has taken it at the end, it is ended."""
    early = EarlyFeeder(await _children.launch_feeder())
    try:
        yield early
    finally:
        left = early.take()
        if left is not None:
            _children.send(left, signal.SIGKILL)
            await left.wait()
