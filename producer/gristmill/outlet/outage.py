"""Waiting out a store that does not answer: visibly, and for as long as nobody says stop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from gristmill.outlet.events import Report, StoreBack, StoreWait
from gristmill.queue.store import OUTAGES

T = TypeVar("T")

_FIRST_DELAY_S = 0.1
_MAX_DELAY_S = 5.0


class StoppedError(Exception):
    """`stop` was set while the store did not answer."""


class Patience:
    """Repeats calls until the store answers."""

    def __init__(self, stop: asyncio.Event, report: Report) -> None:
        self._stop = stop
        self._report = report

    async def call(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """What `attempt` returns; it is called anew after every outage, so it must be safe to repeat.

        Raises:
            StoppedError: `stop` is set and the store does not answer.
        """
        since: float | None = None
        delay_s = _FIRST_DELAY_S
        while True:
            try:
                result = await attempt()
            except OUTAGES as error:
                since = since or time.monotonic()
                self._report(StoreWait(time.monotonic() - since, type(error).__name__))
            else:
                if since is not None:
                    self._report(StoreBack(time.monotonic() - since))
                return result
            if await wait_for(self._stop, delay_s):
                raise StoppedError
            delay_s = min(delay_s * 2, _MAX_DELAY_S)


async def wait_for(event: asyncio.Event, timeout_s: float) -> bool:
    """Whether `event` was set within `timeout_s`."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return event.is_set()
    return True
