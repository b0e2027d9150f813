"""Stops the private store when its clients were killed and could not.

``python -m gristmill.embedded_guard FOLDER`` is started beside every server and sleeps in the kernel until the last
client has let go of `guard.lock`. It then looks again under `start.lock`, as a closing client does; when a new client
was quicker, it sleeps on. It ends with the server. The folder of a store that is marked as ephemeral goes with it, for
its client can't remove it any more.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import sys
from pathlib import Path

from gristmill.embedded import server_lives, stop_if_unused

EPHEMERAL = "ephemeral"
"""A file of this name in a store's folder says that the state folder around it is to be removed with the store."""


def guard(folder: Path) -> None:
    """Return once the server of `folder` has ended."""
    with contextlib.suppress(FileNotFoundError):  # a client has removed it
        while server_lives(folder):
            with (folder / "guard.lock").open("ab") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
            # let go before start.lock is taken: a starting client holds that one while it asks for this one
            with (folder / "start.lock").open("ab") as start:
                fcntl.flock(start, fcntl.LOCK_EX)
                stop_if_unused(folder)
        if (folder / EPHEMERAL).exists():
            _remove_unheld(folder)


def _remove_unheld(folder: Path) -> None:
    """Remove the state folder unless a client has it, for which a new server and a new guard will be started."""
    with (folder / "clients.lock").open("rb") as clients:
        try:
            fcntl.flock(clients, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        shutil.rmtree(folder.parent, ignore_errors=True)


if __name__ == "__main__":
    guard(Path(sys.argv[1]))
