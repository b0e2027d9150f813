"""One job of a client, on the engine's loop: what feeds it, what steers it, what has been handed over of it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from gristmill.contract.lifecycle import TERMINAL, JobState, PauseReason
from gristmill.contract.manifest import Source
from gristmill.intake.errors import FeedError, InputError
from gristmill.intake.feeder import FeedResult, feed, feed_entries
from gristmill.intake.lines_seen import Notice
from gristmill.intake.options import EncodeOptions
from gristmill.queue.errors import JobNotFoundError, QueueError
from gristmill.queue.leasequeue import LeaseQueue
from gristmill.queue.replies import JobSnapshot
from gristmill.queue.store import OUTAGES
from gristmill.sdk.delivery import Delivered, Delivery
from gristmill.sdk.errors import FeedingError
from gristmill.sdk.pictures import GivenPictures
from gristmill.sdk.stream import Hopper, StreamEntries

log = logging.getLogger("gristmill")

REOPENED_PERIOD_S = 2.0
RUN_AGE_S = 0.02
"""Somebody waits for the answers: a run of a stream is sealed this soon, full or not."""


class JobStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Where a job stands.

    Attributes:
        job: its id.
        state: `running`, `paused`, `cancelling`, `cancelled`, `expired` or `complete`.
        reason: why it is paused (`user`, `config`, `budget`, `store`), else None; `detail` has the words.
        total: requests in the job; None while they are still coming in.
        fed: requests that have come in so far.
        done: requests with a result, of which `failed` have no answer.
        in_flight: requests that workers have just now.
        handed: results that this client has handed over.
        attempts: calls made for those that are done.
        by_class: failed requests by class.
    """

    job: str
    state: str
    reason: str | None
    detail: str
    total: int | None
    fed: int
    done: int
    failed: int
    in_flight: int
    handed: int
    attempts: int
    prompt_tokens: int
    completion_tokens: int
    by_class: dict[str, int]

    @property
    def ok(self) -> int:
        """Requests with an answer."""
        return self.done - self.failed

    @property
    def ended(self) -> bool:
        """No request of it will ever be sent again."""
        return self.state in {state.value for state in TERMINAL}


class CoreJob:
    """See the module's head.

    Args:
        queue: the job in the store.
        holder: who we are, for others' messages.
        require_well: raises when the client as a whole is in trouble.
        proven: called at the first answer.
    """

    def __init__(
        self,
        queue: LeaseQueue,
        holder: str,
        require_well: Callable[[], None],
        proven: Callable[[], None] = lambda: None,
    ) -> None:
        self.queue = queue
        self.id = queue.job
        self._holder = holder
        self._require_well = require_well
        self._proven = proven
        self._delivered = Delivered()
        self._delivery: Delivery | None = None
        self._feeding: asyncio.Task[FeedResult] | None = None
        self._minding: asyncio.Task[None] | None = None
        self._entries: StreamEntries | None = None

    # -- feeding

    def feed_file(self, source: Source, options: EncodeOptions) -> None:
        """Begin to feed the job from a file."""
        token = f"sdk-{secrets.token_hex(6)}"

        def begin() -> Coroutine[Any, Any, FeedResult]:
            return feed(self.queue, source, options, None, token, self._holder, _tell)

        self._feed(begin())
        self._minding = asyncio.create_task(self._mind_end(begin))

    def feed_stream(self, options: EncodeOptions) -> Hopper:
        """Begin to feed the job from what will be put into the hopper."""
        hopper = Hopper(asyncio.get_running_loop())
        pictures = GivenPictures(options, os.getcwd())  # noqa: PTH109  a string is wanted
        entries = self._entries = StreamEntries(hopper, options, pictures)
        token = f"sdk-{secrets.token_hex(6)}"
        self._feed(feed_entries(self.queue, entries.open, pictures, token, self._holder, _tell, run_age_s=RUN_AGE_S))
        self._minding = asyncio.create_task(self._mind_end(None))
        return hopper

    def _feed(self, work: Coroutine[Any, Any, FeedResult]) -> None:
        self._feeding = asyncio.create_task(self._fed(work))
        # whoever reads results meets it again in `require_well`; nobody else needs to hear of it
        self._feeding.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _fed(self, work: Coroutine[Any, Any, FeedResult]) -> FeedResult:
        """Feed; a job that can't be fed to its end is cancelled, so that it ends."""
        try:
            return await work
        except (InputError, FeedError) as error:
            await self._give_up()
            raise FeedingError(str(error)) from error
        except Exception:
            await self._give_up()
            raise
        finally:
            if self._entries is not None:
                await self._entries.abandon()

    async def _mind_end(self, begin: Callable[[], Coroutine[Any, Any, FeedResult]] | None) -> None:
        """Feed again, by `begin`, what the store has lost although it was fed to the end (a failover, a power cut).

        What can't be begun again ends the job: it would wait for ever for a feeder.
        """
        while True:
            await asyncio.sleep(REOPENED_PERIOD_S)
            feeding = self._feeding
            if feeding is None or not feeding.done():
                continue
            if feeding.cancelled() or feeding.exception() is not None:
                return
            try:
                seen = await self.queue.snapshot()
            except JobNotFoundError:
                return
            except OUTAGES:
                continue
            if seen.state in TERMINAL:
                return
            if not seen.closed:
                log.warning("the store has lost the end of the input of job %s", self.id)
                self._feed(begin() if begin is not None else _never_again())

    async def _give_up(self) -> None:
        with contextlib.suppress(QueueError, *OUTAGES):
            await self.queue.cancel()

    @property
    def fed(self) -> bool:
        """Nothing more comes in from here."""
        return self._feeding is None or self._feeding.done()

    def require_well(self) -> None:
        """Raises what ended the feeding, or the client's trouble."""
        if self._feeding is not None and self._feeding.done() and not self._feeding.cancelled():
            error = self._feeding.exception()
            if error is not None:
                raise error
        self._require_well()

    # -- results

    async def deliver(self, *, ordered: bool) -> Delivery:
        """A reading of the results from where the last one stopped, opened; the last one is closed.

        Raises:
            CollectorBusyError: somebody else collects this job.
        """
        if self._delivery is not None:
            await self._delivery.close()
        delivery = self._delivery = Delivery(
            self.queue,
            self._delivered,
            ordered=ordered,
            trouble=self.require_well,
            answered=self._proven,
            holder=self._holder,
        )
        await delivery.open()
        return delivery

    # -- steering

    async def status(self) -> JobStatus:
        """Raises JobNotFoundError when it was removed."""
        return _status(await self.queue.snapshot(), self._delivered.count)

    async def pause(self) -> JobStatus:
        """Hand out no more requests; those in flight may finish."""
        await self.queue.pause(PauseReason.USER, "paused by the program")
        return await self.status()

    async def resume(self) -> JobStatus:
        """Go on."""
        await self.queue.resume()
        return await self.status()

    async def cancel(self) -> JobStatus:
        """Send no more requests; finished results are kept."""
        await self._stop_feeding()
        await self.queue.cancel()
        return await self.status()

    async def remove(self) -> None:
        """Take it out of the store, with all its results."""
        await self._stop_feeding()
        with contextlib.suppress(JobNotFoundError):
            await self.queue.remove()

    async def leave(self, *, cancel: bool) -> None:
        """The client closes; with `cancel`, a job that is not fed to its end is cancelled."""
        fed = self.fed
        if self._delivery is not None:
            await self._delivery.close()
        await self._stop_feeding()
        if cancel and not fed:
            await self._give_up()

    async def _stop_feeding(self) -> None:
        for task in (self._minding, self._feeding):
            if task is not None and not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


async def _never_again() -> FeedResult:
    """
    Raises:
        FeedError: always.
    """
    raise FeedError(
        "the store has lost the end of what it had, and an iterable can't be read again: "
        "submit a file where the store may be lost"
    )


def _tell(notice: Notice) -> None:
    level = logging.INFO if notice.kind in ("going_on", "rewound") else logging.WARNING
    log.log(level, "%s", notice.text)


def _status(seen: JobSnapshot, handed: int) -> JobStatus:
    return JobStatus(
        job=seen.job,
        state=JobState(seen.state).value,
        reason=None if seen.reason is None else seen.reason.value,
        detail=seen.detail,
        total=seen.n,
        fed=seen.prod,
        done=seen.done,
        failed=seen.failed,
        in_flight=seen.in_flight,
        handed=handed,
        attempts=seen.attempts,
        prompt_tokens=seen.prompt_tokens,
        completion_tokens=seen.completion_tokens,
        by_class={cls.value: count for cls, count in seen.by_class.items()},
    )
