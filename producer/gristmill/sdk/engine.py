"""A thread with an event loop of its own: the one place where a client's work runs.

What both faces rely on: `call` and `wait` bring a coroutine's result or exception to the caller; when the caller is
cancelled or interrupted, so is the coroutine. The thread never keeps the interpreter alive.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from gristmill.sdk.errors import ClosedError

T = TypeVar("T")

_JOIN_S = 5.0
_LOOK_S = 1.0


class Engine:
    """Starts with its first use; `stop` may be called twice, or before. Of no use in a process forked from its own."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._pid = os.getpid()

    @property
    def is_ours(self) -> bool:
        """Whether this is the process that made it: a fork has no thread of ours."""
        return os.getpid() == self._pid

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on the engine's thread."""
        return self._thread is threading.current_thread()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The running loop.

        Raises:
            ClosedError: it was stopped, or belongs to the process that this one was forked from.
        """
        with self._lock:
            if self._stopped or not self.is_ours:
                raise ClosedError
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=_run, args=(self._loop,), name=self._name, daemon=True)
                self._thread.start()
            return self._loop

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Begin `work` on the engine's loop.

        Raises:
            ClosedError: the engine is stopped.
        """
        try:
            return asyncio.run_coroutine_threadsafe(work, self.loop)
        except BaseException:
            work.close()
            raise

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        """The outcome of `work`, for a caller on another loop."""
        return await asyncio.wrap_future(self.submit(work))

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """The outcome of `work`, for a caller without a loop; Ctrl-C gets through."""
        future = self.submit(work)
        while True:
            try:
                # bounded, since on some systems a wait without a bound lets no signal through
                return future.result(timeout=_LOOK_S)
            except concurrent.futures.TimeoutError:
                if future.done():  # it was the work's own
                    return future.result()
            except BaseException:
                future.cancel()
                raise

    def stop(self) -> None:
        """Cancel what still runs, end the loop and its thread."""
        with self._lock:
            self._stopped = True
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None or not self.is_ours:
            return
        with contextlib.suppress(RuntimeError):  # it has ended already
            loop.call_soon_threadsafe(loop.stop)
        if thread is not threading.current_thread():
            thread.join(_JOIN_S)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=_JOIN_S))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        asyncio.set_event_loop(None)
        loop.close()
