"""What a process calls itself when it takes a lease, and whether the holder of one is dead.

A lease outlives a killed process by half a minute. A process of this machine can be asked for at once, so that whoever
takes up its work need not wait.
"""

from __future__ import annotations

import os
import socket


def holder(what: str) -> str:
    """This process as the holder of a lease: ``WHAT, HOST pid N``."""
    return f"{what}, {socket.gethostname()} pid {os.getpid()}"


def is_dead_here(name: str) -> bool:
    """Whether the holder called `name` is a process of this machine that is gone, so that waiting for it is in vain."""
    prefix, _, pid = name.rpartition(" pid ")
    if not prefix.endswith(f" {socket.gethostname()}") or not pid.isdecimal():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False
    return False
