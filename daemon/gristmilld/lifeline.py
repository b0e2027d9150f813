"""How a forked child shows that it lives, and learns that its parent is dead.

The beat is given by the child's event loop: a loop that hangs stops beating, which is the point.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

BEAT_INTERVAL_S = 0.5

_LOOK_INTERVAL_S = 1.0
_PR_SET_PDEATHSIG = 1
_EXIT_ORPHAN = 70


async def beat_forever(heartbeat_fd: int) -> None:
    """Write one byte to `heartbeat_fd` every `BEAT_INTERVAL_S`; runs until cancelled.

    A full or closed pipe means that the supervisor does not read just now, or is dead: neither is ours to judge.
    """
    while True:
        beat(heartbeat_fd)
        await asyncio.sleep(BEAT_INTERVAL_S)


def beat(heartbeat_fd: int) -> None:
    """Write one byte to `heartbeat_fd`, never waiting."""
    try:
        os.write(heartbeat_fd, b".")
    except (BlockingIOError, BrokenPipeError):
        return


def watch_parent(parent_fd: int, on_death: Callable[[], None]) -> None:
    """Call `on_death` from the running loop once, when the supervisor is dead."""
    loop = asyncio.get_running_loop()

    def closed() -> None:
        loop.remove_reader(parent_fd)
        on_death()

    loop.add_reader(parent_fd, closed)


def die_with(parent: int) -> None:
    """Have this process end at once when process `parent`, which forked it, does; or now, when it has already.

    By the kernel on Linux, elsewhere by a thread that looks once a second.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    else:
        threading.Thread(target=_watch, args=(parent,), name="gm-parent-watch", daemon=True).start()
    if os.getppid() != parent:
        os._exit(_EXIT_ORPHAN)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_INTERVAL_S)
    os._exit(_EXIT_ORPHAN)
