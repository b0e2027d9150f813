"""One writer per OUT: an advisory lock that the system drops with the process, so none is ever stale.

The file says who holds it, for the sentence that a second writer gets; its content decides nothing.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from pathlib import Path

import msgspec

from gristmill.outlet.errors import WorkBusyError, disk
from gristmill.outlet.files import pwrite_all


class Holder(msgspec.Struct, frozen=True):
    """Who writes: `started` is wall time, s since the epoch."""

    pid: int
    host: str
    started: float
    job: str | None = None


class OutLock:
    """Held from construction until `release`.

    Raises:
        WorkBusyError: another process holds it.
        DiskError: the file cannot be made.
    """

    def __init__(self, path: Path, out: Path) -> None:
        self._path = path
        self._fd = self._acquire(out)
        self.describe(None)

    def _acquire(self, out: Path) -> int:
        while True:
            with disk(self._path):
                fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                holder = _read_holder(fd)
                os.close(fd)
                raise WorkBusyError(
                    out,
                    holder.job if holder else None,
                    holder.pid if holder else None,
                    holder.host if holder and holder.host != socket.gethostname() else "",
                ) from None
            if self._is_current(fd):
                return fd
            os.close(fd)  # a writer that finished has removed the folder between open and flock

    def _is_current(self, fd: int) -> bool:
        try:
            return os.path.samestat(os.fstat(fd), self._path.stat())
        except FileNotFoundError:
            return False

    def describe(self, job: str | None) -> None:
        """Write down who we are and what we work on."""
        holder = Holder(os.getpid(), socket.gethostname(), time.time(), job)
        with disk(self._path):
            os.ftruncate(self._fd, 0)
            pwrite_all(self._fd, msgspec.json.encode(holder), 0)

    def release(self) -> None:
        """Let go; may be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _read_holder(fd: int) -> Holder | None:
    return _decode(os.pread(fd, 4096, 0))


def _decode(data: bytes) -> Holder | None:
    try:
        return msgspec.json.decode(data, type=Holder)
    except msgspec.MsgspecError:
        return None
