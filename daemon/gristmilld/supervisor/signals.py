"""Signals of the supervisor: handlers only enqueue, through a pipe that its loop reads like any other.

SIGTERM and SIGINT ask for a stop. SIGCHLD wakes the loop. SIGHUP is ignored: a daemon outlives the terminal it was
started from, and a changed configuration takes a restart.
"""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Self

STOP_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT})


def _enqueued_already(_signum: int, _frame: FrameType | None) -> None:
    """Python calls a handler for each signal; its number is in the pipe by then."""


class SignalPipe:
    """While it is entered, signals arrive at `read_fd`.

    Afterwards stop requests are ignored: what is left is the end of the process, and one that comes late must neither
    cut it short nor turn its exit code into "killed".
    """

    def __init__(self) -> None:
        self.read_fd = self._write_fd = -1

    def __enter__(self) -> Self:
        self.read_fd, self._write_fd = os.pipe()
        os.set_blocking(self.read_fd, False)
        os.set_blocking(self._write_fd, False)
        signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        for signum in (*STOP_SIGNALS, signal.SIGCHLD):
            signal.signal(signum, _enqueued_already)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        return self

    def __exit__(self, *_: object) -> None:
        for signum in STOP_SIGNALS:
            signal.signal(signum, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        os.close(self.read_fd)
        os.close(self._write_fd)

    def arrived(self) -> bytes:
        """Numbers of the signals since the last call, oldest first."""
        try:
            return os.read(self.read_fd, 4096)
        except BlockingIOError:
            return b""
