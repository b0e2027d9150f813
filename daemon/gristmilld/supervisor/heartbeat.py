"""The supervisor's end of a child's heartbeat: a pipe that never blocks either side."""

from __future__ import annotations

import os

_READ_BYTES = 4096


class Heartbeat:
    """One child's pipe; `write_fd` is the child's, `read_fd` ours.

    After the fork the supervisor calls `keep_reader`, so that the pipe ends with the child. `close` may be called at
    any time, and twice.
    """

    def __init__(self) -> None:
        self.read_fd, self.write_fd = os.pipe()
        os.set_blocking(self.read_fd, False)
        os.set_blocking(self.write_fd, False)

    def keep_reader(self) -> None:
        os.close(self.write_fd)
        self.write_fd = -1

    def beaten(self) -> bool:
        """Whether the child has beaten since the last call; False, too, when it is gone."""
        try:
            return bool(os.read(self.read_fd, _READ_BYTES))
        except BlockingIOError:
            return False

    def close(self) -> None:
        for fd in (self.read_fd, self.write_fd):
            if fd >= 0:
                os.close(fd)
        self.read_fd = self.write_fd = -1
