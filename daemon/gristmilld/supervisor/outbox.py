"""Notices of dead workers, kept until the control child has acted on them.

A notice is one line of JSON, ``{"number", "prefix", "crashed"}``; an acknowledgement is the number on a line of its
own. When the control child dies, the next one gets every notice that is still open, so none is lost with it; acting
twice on one changes nothing. When the supervisor dies, the leases of its workers run out by themselves.
"""

from __future__ import annotations

import contextlib
import os

import msgspec

from gristmilld.control.notices import Notice


class Outbox:
    """The open notices, and the pipes to the control child that now lives, if any does."""

    def __init__(self) -> None:
        self._open: dict[int, Notice] = {}
        self._next = 1
        self._unsent = b""
        self._heard = b""
        self._finished = False
        self.notices_fd = -1
        self.acks_fd = -1

    def __len__(self) -> int:
        return len(self._open)

    def attach(self, notices_fd: int, acks_fd: int) -> None:
        """Speak to a new control child, beginning with every open notice; takes the descriptors over."""
        self.detach()
        for fd in (notices_fd, acks_fd):
            os.set_blocking(fd, False)
        self.notices_fd, self.acks_fd = notices_fd, acks_fd
        self._unsent = b"".join(map(_line, self._open.values()))
        self._heard = b""
        self.flush()

    def detach(self) -> None:
        """Close the pipes; the open notices wait for the next `attach`."""
        for fd in (self.notices_fd, self.acks_fd):
            if fd >= 0:
                os.close(fd)
        self.notices_fd = self.acks_fd = -1

    def add(self, prefix: str, *, crashed: bool) -> None:
        """Tell of a dead worker."""
        notice = Notice(self._next, prefix, crashed)
        self._next += 1
        self._open[notice.number] = notice
        if self.notices_fd >= 0:
            self._unsent += _line(notice)
            self.flush()

    def finish(self) -> None:
        """No notice will follow: end the stream once everything has been sent."""
        self._finished = True
        self.flush()

    def flush(self) -> None:
        """Send what the pipe takes; the rest waits for the next call."""
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            while self._unsent and self.notices_fd >= 0:
                self._unsent = self._unsent[os.write(self.notices_fd, self._unsent) :]
        if self._finished and not self._unsent and self.notices_fd >= 0:
            os.close(self.notices_fd)
            self.notices_fd = -1

    def hear(self) -> bool:
        """Take in acknowledgements; False once the other end is closed."""
        try:
            data = os.read(self.acks_fd, 65536)
        except BlockingIOError:
            return True
        *lines, self._heard = (self._heard + data).split(b"\n")
        for line in lines:
            self._open.pop(int(line), None)
        self.flush()
        return bool(data)


def _line(notice: Notice) -> bytes:
    return msgspec.json.encode(notice) + b"\n"
