"""The event loop of processes through which requests pass: uvloop's where it is installed, else asyncio's.

What a process spends on a request beside its own code is mostly the loop's reading and writing of sockets, and uvloop
does that in C. Processes that only look after others take asyncio's own; so does the SDK, a guest in its caller's
process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """`main` from start to end in a new loop; as `asyncio.run`."""
    with asyncio.Runner(loop_factory=_factory()) as runner:
        return runner.run(main)


def _factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
