"""Requests that are asked one by one, in one standing job: each caller waits for its own result.

The job is begun with the first request and goes on until the client closes. When it can't go on (paused, no daemon),
everyone who waits hears why, and the next request begins a new one.
"""

from __future__ import annotations

import asyncio
import contextlib

from gristmill.sdk.core import Core
from gristmill.sdk.errors import ClosedError
from gristmill.sdk.jobs import CoreJob
from gristmill.sdk.options import JobOptions, Submission
from gristmill.sdk.result import Result
from gristmill.sdk.shape import Shaped
from gristmill.sdk.stream import Hopper


class _Round:
    """One standing job: what was put in has a future under its place."""

    def __init__(self, job: CoreJob, hopper: Hopper) -> None:
        self.job = job
        self._hopper = hopper
        self._waiting: dict[int, asyncio.Future[Result]] = {}
        self._next = 0
        self.over: BaseException | None = None
        self.task = asyncio.create_task(self._run())

    async def ask(self, item: Shaped) -> Result:
        await self._hopper.put_when_room(item)
        place, self._next = self._next, self._next + 1
        if self.over is not None:
            raise self.over
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting[place] = future
        try:
            return await future
        finally:
            self._waiting.pop(place, None)

    async def _run(self) -> None:
        """Pass results on until the job can't go on; then tell everyone why."""
        try:
            delivery = await self.job.deliver(ordered=False)
            while batch := await delivery.next():
                for result in batch:
                    delivery.handed += 1
                    future = self._waiting.get(result.index)
                    if future is not None and not future.done():
                        future.set_result(result)
            self.over = ClosedError()
        except asyncio.CancelledError:
            self.over = ClosedError()
            raise
        except Exception as error:  # noqa: BLE001  everyone who waits raises it
            self.over = error
        finally:
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(ClosedError() if self.over is None else self.over)

    async def close(self) -> None:
        self._hopper.close()
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


class Asker:
    """See the module's head. `close` may be called twice, or before anything was asked."""

    def __init__(self, core: Core, options: JobOptions = JobOptions()) -> None:
        self._core = core
        self.options = options
        self._round: _Round | None = None
        self._lock = asyncio.Lock()

    async def ask(self, item: Shaped) -> Result:
        """The result of one request.

        Raises:
            What ended the job in which it was asked.
        """
        async with self._lock:
            if self._round is not None and self._round.over is not None:
                await self._end_round()
            if self._round is None:
                submission = Submission(name="asked", options=self.options)
                self._round = _Round(*await self._core.submit_stream(submission))
        return await self._round.ask(item)

    async def close(self) -> None:
        """Whoever still waits gets `ClosedError`."""
        if self._round is not None:
            await self._round.close()
            self._round = None

    async def _end_round(self) -> None:
        ended, self._round = self._round, None
        if ended is not None:
            await ended.close()
            with contextlib.suppress(Exception):  # the reason why it ended may still hold: what is left lapses
                await self._core.forget(ended.job)
