"""Keeps a private store alive for as long as a command uses it.

Nobody else looks after it: a server that is killed (by hand, or by the kernel when memory is short) is started again
at the same address with what it had, so quickly that calls under way only see a lost connection and try again. What
the server wrote before it was killed, the system has.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from gristmill.cli._talk import say
from gristmill.embedded import EmbeddedStore, EmbeddedStoreError, server_lives

LOOK_PERIOD_S = 0.1
"""Shorter than the patience of the shortest call."""
TRY_PERIOD_S = 10.0
"""A server that does not start is tried again this often."""


@contextlib.asynccontextmanager
async def kept_alive(store: EmbeddedStore | None) -> AsyncIterator[None]:
    """Start the server of `store` again whenever it has died; does nothing without one.

    At the end no start is under way any more, so the store may be closed.
    """
    if store is None:
        yield
        return
    stop = asyncio.Event()
    mending = asyncio.create_task(_mend(store, stop))
    try:
        yield
    finally:
        stop.set()
        await mending


async def _mend(store: EmbeddedStore, stop: asyncio.Event) -> None:
    period_s = LOOK_PERIOD_S
    while not await _set_within(stop, period_s):
        period_s = LOOK_PERIOD_S
        if server_lives(store.folder):
            continue
        try:
            await asyncio.to_thread(store.revive)
        except (EmbeddedStoreError, OSError) as error:
            say(str(error))
            period_s = TRY_PERIOD_S


async def _set_within(event: asyncio.Event, timeout_s: float) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()
    return event.is_set()
