"""One connection to an endpoint, which carries one call after the other.

A call is a request written and a response awaited; the response may begin, and even end, while the request is still
being written. What can go wrong ends the call with a value and the connection with it: a connection goes back to its
owner only when the whole request was written, the whole response was read, nothing came behind it and the server
means to keep it open.

There are no timers here: a connection knows when its call began, when the request was sent and when something moved
last, and its owner asks it now and then (`check`) which clock has run out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import cast

import msgspec

from gristmill.contract.manifest import Timeouts
from gristmilld.upstream import exceptions as seen
from gristmilld.upstream.body import Body
from gristmilld.upstream.exceptions import Moment
from gristmilld.upstream.outcome import Clock, FailedCall
from gristmilld.upstream.wire import BrokenBodyError, NotHttpError, Reader, Reply, TooLargeError

HIGH_WATER_BYTES = 1 << 18
"""So much of a request may wait in memory for the server to take it; above, no more of its pictures is encoded."""
_WRITE_BYTES = 3 << 18
"""Parts of a body are written together up to this size: a picture of a usual size with all that is around it."""
_MAX_EARLY_BYTES = 1 << 16
"""Most that is kept of what a server says unasked on a new connection."""


class Connection(asyncio.Protocol):
    """A protocol for `loop.create_connection`, and what carries calls once it is connected.

    Args:
        max_body_bytes: cap of a response's body.
        on_lost: called once with the connection when it has ended for good.

    Attributes:
        lost: it has ended for good.
        moved_s: when something was sent or came last, monotonic seconds.
    """

    __slots__ = ("_answered_s", "_begun_s", "_calls", "_drained", "_early", "_max_body_bytes", "_on_lost",
                 "_paused", "_reader", "_sent_s", "_timeouts", "_transport", "_waiter", "_written",
                 "lost", "moved_s")  # fmt: skip

    def __init__(self, max_body_bytes: int, on_lost: Callable[[Connection], None]) -> None:
        self._max_body_bytes = max_body_bytes
        self._on_lost = on_lost
        self._reader = Reader(max_body_bytes)
        self._transport: asyncio.Transport
        self._waiter: asyncio.Future[Reply | FailedCall] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._timeouts = Timeouts()
        self._calls = 0
        self._early = b""
        self.lost = self._paused = False
        self._written = True
        self._begun_s = self._sent_s = self._answered_s = self.moved_s = 0.0

    def __repr__(self) -> str:
        return f"Connection({self._calls} calls, {'lost' if self.lost else 'open'})"

    @property
    def reusable(self) -> bool:
        """Whether another call may go over it after the last one ended."""
        return self._reader.reusable and self._written and not self._paused and not self.lost

    @property
    def busy(self) -> bool:
        """Whether it carries a call now."""
        return self._waiter is not None

    async def exchange(
        self, head: bytes, body: Body, whole: bytes | None, timeouts: Timeouts, begun_s: float
    ) -> Reply | FailedCall:
        """Send one request and wait for its response. A cancelled call ends the connection.

        Args:
            head: of the request, up to the value of its Content-Length.
            body: its body.
            whole: `body` in one piece, when it is sent so (`Body.whole`).
            timeouts: the clocks; *connect* is over.
            begun_s: when the call began.
        """
        waiter: asyncio.Future[Reply | FailedCall] = asyncio.get_running_loop().create_future()
        self._waiter = waiter
        self._timeouts = timeouts
        self._begun_s = begun_s
        self._answered_s = self._sent_s = 0.0
        self._calls += 1
        try:
            if self._calls == 1 and (self._early or self.lost):
                self._look_at_early()
            elif whole is not None:
                self._transport.write(b"%b%d\r\n\r\n%b" % (head, body.size, whole))
                self._sent_s = monotonic()
            else:
                await self._upload(head, body, waiter)
            return await waiter
        except BaseException:
            self.abort()
            raise
        finally:
            self._waiter = None

    async def _upload(self, head: bytes, body: Body, waiter: asyncio.Future[Reply | FailedCall]) -> None:
        """Write a body in parts, as fast as the server takes them; stop when the call ends before.

        The pictures are dropped at the end, when most of what was made of them has left the process.
        """
        self._written = False
        self.moved_s = monotonic()
        ready: list[bytes | memoryview] = [b"%b%d\r\n\r\n" % (head, body.size)]
        size = 0
        for part in body.parts():
            if size + len(part) > _WRITE_BYTES:
                await self._write(ready)
                ready, size = [], 0
            if waiter.done():
                return
            ready.append(part)
            size += len(part)
        await self._write(ready)
        body.drop()
        self._written = True
        self._sent_s = self.moved_s

    async def _write(self, parts: list[bytes | memoryview]) -> None:
        """Write `parts`; while too much waits for the server, wait for it, or for the end of the call."""
        self._transport.writelines(parts)
        if self._paused:
            drained = self._drained = asyncio.get_running_loop().create_future()
            try:
                await drained
            finally:
                self._drained = None
        self.moved_s = monotonic()

    def abort(self) -> None:
        """Close it at once, whatever is under way."""
        self._reader.reusable = False
        self._transport.abort()

    # -- the clocks -----------------------------------------------------------------------------------------------

    def check(self, now_s: float) -> None:
        """End the call, if there is one, when one of its clocks has run out."""
        if self._waiter is None or self._waiter.done():
            return
        clock = self._expired(now_s)
        if clock is Clock.IDLE and not self._answered_s:
            self._fail(seen.upload_stalled(self._timeouts))
        elif clock is not None:
            self._fail(seen.ran_out(clock, self._timeouts))

    def _expired(self, now_s: float) -> Clock | None:
        timeouts = self._timeouts
        if now_s - self._begun_s > timeouts.total_s:
            return Clock.TOTAL
        if self._answered_s or not self._sent_s:
            return Clock.IDLE if now_s - self.moved_s > timeouts.idle_s else None
        return Clock.FIRST_BYTE if now_s - self._sent_s > timeouts.first_byte_s else None

    # -- what the loop tells --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)

    def data_received(self, data: bytes) -> None:
        waiter = self._waiter
        if waiter is None or waiter.done():
            self._take_unasked(data)
            return
        reader = self._reader
        now_s = self.moved_s = monotonic()
        try:
            reply = reader.feed(data)
        except _UNREADABLE as error:
            self._answered_s = self._answered_s or (now_s if reader.status else 0.0)
            self._fail(self._explained(error))
            return
        if reply is not None:
            reply.answered_s = self._answered_s or now_s
            self._end(reply)
        elif reader.status and not self._answered_s:
            self._answered_s = now_s

    def eof_received(self) -> None:
        self._ended(orderly=True)
        self.abort()  # not `close`, which would wait until a server that has gone takes the rest of the request

    def connection_lost(self, exc: BaseException | None) -> None:
        self.lost = True
        self._ended(orderly=exc is None)
        self._on_lost(self)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._wake()

    # -- how a call ends ------------------------------------------------------------------------------------------

    def _ended(self, *, orderly: bool) -> None:
        """Nothing more will come."""
        self._reader.reusable = False
        waiter, reader = self._waiter, self._reader
        if waiter is None or waiter.done():
            return
        try:
            reply = reader.feed_end() if orderly else None
        except _UNREADABLE as error:
            self._fail(self._explained(error))
            return
        if reply is not None:
            reply.answered_s = self._answered_s
            self._end(reply)
            return
        moment = Moment(self._calls > 1, self._answered_s > 0.0, reader.begun, monotonic() - self._begun_s)
        self._fail(seen.cut_off(moment))

    def _explained(self, error: Exception) -> FailedCall:
        if isinstance(error, TooLargeError):
            return seen.too_large(error.status, self._max_body_bytes)
        return seen.not_http() if isinstance(error, NotHttpError) else seen.broken_off()

    def _fail(self, failure: FailedCall) -> None:
        """End the call with `failure`, and the connection with it."""
        if self._answered_s:
            age_ms = int((self._answered_s - self._begun_s) * 1000)
            failure = msgspec.structs.replace(failure, first_byte_ms=age_ms)
        self._end(failure)
        self.abort()

    def _end(self, outcome: Reply | FailedCall) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(outcome)
        self._wake()

    def _wake(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def _take_unasked(self, data: bytes) -> None:
        """Bytes that answer nothing: a greeting is kept for the first call to look at, others end the connection."""
        if self._calls == 0 and len(self._early) < _MAX_EARLY_BYTES:
            self._early += data
        else:
            self._reader.reusable = False
            self.abort()

    def _look_at_early(self) -> None:
        """What had happened on the new connection before it was given a call."""
        if self._early:
            self.data_received(self._early)
        self._ended(orderly=True)


_UNREADABLE = (NotHttpError, TooLargeError, BrokenBodyError)
