"""Passes on what the supervisor of a private daemon warns of: workers that crash, hang or can't be started.

The daemon's log is a file; this reads what comes to it, a few times a second. The first warning is told at once. Of
what follows within `QUIET_S` only the last is, with how many there were: isolating a request that kills its workers
takes several crashes.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

PERIOD_S = 0.25
QUIET_S = 10.0
_LOUD = ("warning", "error")


class DaemonLog:
    """The log at `path`, from where it ends now.

    Args:
        path: written by the daemon; one that is not there is empty.
        tell: hears the warnings.
    """

    def __init__(self, path: Path, tell: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._tell = tell
        self._clock = clock
        self._offset = 0
        with contextlib.suppress(OSError):
            self._offset = path.stat().st_size
        self._rest = b""
        self._told_s = float("-inf")
        self._held: list[str] = []

    async def follow(self) -> None:
        """Look for warnings until cancelled; then tell what was held back."""
        try:
            while True:
                self.look()
                await asyncio.sleep(PERIOD_S)
        finally:
            self._told_s = float("-inf")
            self.look()

    def look(self) -> None:
        """Read what has come, and tell what is due."""
        self._held += [text for line in self._lines() if (text := _warning(line))]
        now_s = self._clock()
        if not self._held or now_s - self._told_s < QUIET_S:
            return
        more = len(self._held) - 1
        self._tell(self._held[-1] + (f" (the last of {more + 1} such warnings)" if more else ""))
        self._told_s = now_s
        self._held.clear()

    def _lines(self) -> list[str]:
        with contextlib.suppress(OSError), self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
            self._offset += len(data)
            *lines, self._rest = (self._rest + data).split(b"\n")
            return [line.decode(errors="replace") for line in lines]
        return []


class _Line(msgspec.Struct):
    """One line of the log."""

    level: str = ""
    process: str = ""
    message: str = ""


def _warning(line: str) -> str:
    """What the supervisor warns of in a line of the log, which is text or JSON; empty for all others."""
    if line.startswith("{"):
        with contextlib.suppress(msgspec.MsgspecError):
            said = msgspec.json.decode(line, type=_Line)
            return said.message if said.process == "supervisor" and said.level in _LOUD else ""
    _, level, process, words, *_ = [*line.split(" ", 3), "", "", "", ""]
    return words if process == "supervisor" and level in _LOUD else ""
