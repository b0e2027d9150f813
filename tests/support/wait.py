"""Wait for facts, not for time."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable


async def wait_until(
    predicate: Callable[[], bool | Awaitable[bool]], *, description: str, timeout_s: float = 20.0
) -> None:
    """Return once `predicate` holds; fail the test with `description` when it does not within `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while True:
        holds = predicate()
        if inspect.isawaitable(holds):
            holds = await holds
        if holds:
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s} s: {description}")
        await asyncio.sleep(0.01)


def wait_until_sync(predicate: Callable[[], bool], *, description: str, timeout_s: float = 20.0) -> None:
    """`wait_until` for tests without a loop."""
    deadline = time.monotonic() + timeout_s
    while not predicate():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s} s: {description}")
        time.sleep(0.01)
