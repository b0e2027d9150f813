"""Stops the private store when its clients were killed and could not.

``python -m gristmill.embedded_guard FOLDER`` is started beside every server and sleeps in the kernel until the last
client has let go of `guard.lock`. It then looks again under `start.lock`, as a closing client does; when a new client
was quicker, it sleeps on. It ends with the server.
"""

from __future__ import annotations

import fcntl
import sys
from pathlib import Path

from gristmill.embedded import server_lives, stop_if_unused


def guard(folder: Path) -> None:
    """Return once the server of `folder` has ended."""
    while server_lives(folder):
        with (folder / "guard.lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
        # let go before start.lock is taken: a starting client holds that one while it asks for this one
        with (folder / "start.lock").open("ab") as start:
            fcntl.flock(start, fcntl.LOCK_EX)
            stop_if_unused(folder)


if __name__ == "__main__":
    guard(Path(sys.argv[1]))
