"""The feeder's side of the store: every call waits out an outage visibly, and the lease is kept meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TypeVar

from redis.exceptions import AuthenticationError, AuthorizationError, NoPermissionError, RedisError

from gristmill.intake.errors import FeedError
from gristmill.intake.lines_seen import Notice, Report
from gristmill.queue.errors import JobNotFoundError, StoreFullError
from gristmill.queue.feedstats import FeedStats
from gristmill.queue.leasequeue import LeaseQueue
from gristmill.queue.replies import Role
from gristmill.queue.store import OUTAGES

LEASE_TTL_MS = 30_000
_RENEW_EVERY_S = 5.0
_RELEASE_TIMEOUT_S = 2.0
_TELL_TIMEOUT_S = 2.0
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.05, 1.0
_TELL_AFTER_S, _TELL_AGAIN_S = 1.0, 60.0

_REFUSED = (AuthenticationError, AuthorizationError, NoPermissionError)
_AWAY: tuple[type[Exception], ...] = (*_REFUSED, *OUTAGES)
_REFUSAL = "the store refuses us: check user and password in the store's URL, and what its ACL lets the user do"

T = TypeVar("T")


class Patience:
    """Waits a little longer each time, and says once in a while what it waits for."""

    def __init__(self, report: Report, what: str) -> None:
        self._report = report
        self._what = what
        self._delay_s = _FIRST_WAIT_S
        self._now = asyncio.get_running_loop().time
        self._began_at_s = self._now()
        self._tell_at_s = self._began_at_s + _TELL_AFTER_S
        self._told = False

    async def wait(self) -> None:
        if self._now() >= self._tell_at_s:
            self._report(Notice("waiting", f"waiting: {self._what}"))
            self._told = True
            self._tell_at_s = self._now() + _TELL_AGAIN_S
        await asyncio.sleep(self._delay_s)
        self._delay_s = min(self._delay_s * 2, _LONGEST_WAIT_S)

    def over(self) -> None:
        if self._told:
            self._report(Notice("going_on", f"going on after {self._now() - self._began_at_s:.0f} s"))


async def patiently(make: Callable[[], Awaitable[T]], report: Report) -> T:
    """`make()`'s answer, asked for again until the store answers.

    Raises:
        FeedError: the store refuses us, or the job is gone.
    """
    patience = Patience(report, "the store does not answer")
    while True:
        try:
            answer = await make()
        except JobNotFoundError as error:
            raise FeedError(str(error)) from error
        except _AWAY as error:
            if _is_refusal(error):
                raise FeedError(_REFUSAL) from error
            await patience.wait()
        else:
            patience.over()
            return answer


def _is_refusal(error: BaseException | None) -> bool:
    """Whether a refusal is at the bottom of it: while connecting, redis-py hides it in a plain ConnectionError."""
    while error is not None:
        if isinstance(error, _REFUSED):
            return True
        error = error.__cause__
    return False


class FeederStore:
    """A job's queue as the feeder uses it. `take` before all else; `release` when done, also after a failure.

    While it has the lease, it tells whoever watches of `stats`, which others add to.
    """

    def __init__(
        self, queue: LeaseQueue, token: str, holder: str, report: Report, stats: FeedStats | None = None
    ) -> None:
        self.queue = queue
        self.stats = stats or FeedStats()
        self.token = token
        self._holder = holder
        self._report = report
        self._ttl_ms = LEASE_TTL_MS
        self._renewing: asyncio.Task[None] | None = None
        self._lost: FeedError | None = None

    async def call(self, make: Callable[[], Awaitable[T]]) -> T:
        """`make()`'s answer, asked for again until the store answers.

        Raises:
            FeedError: the store refuses us, the job is gone, or the lease is.
        """

        async def leased() -> T:
            self.require_lease()
            return await make()

        return await patiently(leased, self._report)

    async def stage(self, fields: Mapping[bytes | str, bytes]) -> int:
        """Upload a run's payload; waits while the store is at its memory limit. Returns the bytes staged."""
        patience = Patience(self._report, "the store is at its memory limit; results must be collected first")
        while True:
            try:
                staged = await self.call(lambda: self.queue.stage(self.token, fields))
            except StoreFullError:
                await patience.wait()
            else:
                patience.over()
                return staged

    async def take(self) -> None:
        """Take the feeder's lease and keep it until `release`.

        Raises:
            FeedError: another feeder has it.
        """
        await self.retake()
        self._renewing = asyncio.create_task(self._keep())

    async def retake(self) -> None:
        """Take the lease again, e.g. after an outage longer than its time to live."""
        reply = await self.call(lambda: self.queue.take_lease(Role.FEEDER, self.token, self._holder, self._ttl_ms))
        if not reply.granted:
            raise FeedError(
                f"job {self.queue.job} is fed by {reply.holder} already (its lease ends in "
                f"{reply.expires_in_ms / 1000:.0f} s): let it finish, or stop it first"
            )

    def require_lease(self) -> None:
        if self._lost is not None:
            raise self._lost

    async def _keep(self) -> None:
        """Renew while alive, also while the feeder waits for room."""
        every_s = min(_RENEW_EVERY_S, self._ttl_ms / 3000)
        while True:
            await self._tell()
            await asyncio.sleep(every_s)
            try:
                if not await self.call(lambda: self.queue.renew_lease(Role.FEEDER, self.token, self._ttl_ms)):
                    await self.retake()
            except FeedError as error:
                self._lost = error
                return

    async def _tell(self) -> None:
        """Say how the feeding goes; it is for watching alone, so no failure of it matters (a full store refuses it)."""
        with suppress(RedisError, OSError):
            async with asyncio.timeout(_TELL_TIMEOUT_S):
                await self.queue.tell_feeding(self.stats)

    async def release(self) -> None:
        """Give the lease back; a store that is down lets it run out instead."""
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
            self._renewing = None
        with suppress(Exception):
            async with asyncio.timeout(_RELEASE_TIMEOUT_S):
                await self.queue.release_lease(Role.FEEDER, self.token)
                await self.queue.forget_feeding()
