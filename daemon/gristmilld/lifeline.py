"""How a forked child shows that it lives, and learns that its supervisor is dead.

Used inside the child's event loop: a loop that hangs stops beating, which is the point.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

BEAT_INTERVAL_S = 0.5


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
