"""Calls by way of aiohttp: for endpoints behind a proxy, which our own connections do not speak to.

Same words, same clocks, same results as `connections`; twice the cost. Idle connections are kept as long as there. A
call that must not meet a stale connection goes through a second session that never reuses one.

The clocks: *connect* and *total* are aiohttp's own timers. *First byte* is ours, since aiohttp's would begin anew with
each byte of a head that drips; it begins when the body has been written. So is *idle*, which has another span.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from time import monotonic
from types import SimpleNamespace
from typing import Any

import aiohttp
import msgspec
from aiohttp.abc import AbstractStreamWriter

from gristmill.contract.manifest import Timeouts
from gristmilld.upstream.body import Body
from gristmilld.upstream.connections import KEEPALIVE_S
from gristmilld.upstream.dial import DNS_TTL_S
from gristmilld.upstream.endpoint import Endpoint
from gristmilld.upstream.exceptions import (
    AnswerStalledError,
    HeadTimeoutError,
    Moment,
    UploadStalledError,
    too_large,
)
from gristmilld.upstream.foreign import CAUGHT, failure_of
from gristmilld.upstream.outcome import FailedCall
from gristmilld.upstream.wire import Reply, TooLargeError

_NO_AUTO_HEADERS = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")


class _Seen:
    """What is seen of one call on its way.

    Attributes:
        connected: it made a new connection instead of reusing one.
        answered_s: when the response's head had come, monotonic seconds; 0 while it has not.
    """

    __slots__ = ("answered_s", "connected")

    def __init__(self) -> None:
        self.connected = False
        self.answered_s = 0.0


async def _on_connect(_session: aiohttp.ClientSession, context: SimpleNamespace, _params: object) -> None:
    context.trace_request_ctx.connected = True


class Ordinary:
    """See the module's head. Make it in the loop that uses it; `close` it at the end."""

    def __init__(self, concurrency: int, max_body_bytes: int) -> None:
        self._concurrency = concurrency
        self._max_body_bytes = max_body_bytes
        self._session = self._open(keepalive_timeout=KEEPALIVE_S)
        self._fresh = self._open(force_close=True)

    def _open(self, **keeping: Any) -> aiohttp.ClientSession:
        tracing = aiohttp.TraceConfig()
        tracing.on_connection_create_start.append(_on_connect)
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._concurrency, ttl_dns_cache=int(DNS_TTL_S), **keeping),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=_NO_AUTO_HEADERS,
            trust_env=False,
            trace_configs=[tracing],
        )

    async def close(self) -> None:
        """Close every connection; a second call is fine."""
        await self._session.close()
        await self._fresh.close()

    async def post(
        self, endpoint: Endpoint, path: str, body: Body, timeouts: Timeouts, begun_s: float, *, fresh: bool
    ) -> Reply | FailedCall:
        """Send one request; what came back, or why nothing did. Only cancellation raises.

        Args:
            begun_s: when the call began.
            fresh: use a new connection.
        """
        body.whole()  # raises for a body that can't be sent again
        seen = _Seen()
        try:
            async with await self._ask(endpoint, path, body, timeouts, seen, fresh=fresh) as response:
                seen.answered_s = monotonic()
                received = await self._read(response, timeouts.idle_s)
        except CAUGHT as error:
            moment = Moment(not seen.connected, seen.answered_s > 0.0, begun=False, elapsed_s=monotonic() - begun_s)
            failure = failure_of(error, moment, timeouts)
        except TooLargeError as error:
            failure = too_large(error.status, self._max_body_bytes)
        else:
            return Reply(response.status, response.headers, received, seen.answered_s)
        if not seen.answered_s:
            return failure
        return msgspec.structs.replace(failure, first_byte_ms=int((seen.answered_s - begun_s) * 1000))

    async def _ask(
        self, endpoint: Endpoint, path: str, body: Body, timeouts: Timeouts, seen: _Seen, *, fresh: bool
    ) -> aiohttp.ClientResponse:
        """Send the request and wait for the response's head."""
        session = self._fresh if fresh else self._session
        clock = asyncio.timeout(None)
        try:
            async with clock:
                return await session.post(
                    endpoint.target(path),
                    data=_PieceWise(body, timeouts, clock),
                    headers=endpoint.headers,
                    allow_redirects=False,
                    timeout=aiohttp.ClientTimeout(total=timeouts.total_s, connect=timeouts.connect_s),
                    ssl=True if endpoint.origin.tls is None else endpoint.origin.tls,
                    proxy=endpoint.proxy,
                    trace_request_ctx=seen,
                )
        except TimeoutError:
            if clock.expired():
                raise HeadTimeoutError from None
            raise

    async def _read(self, response: aiohttp.ClientResponse, idle_s: float) -> bytes:
        """The whole body, at most the cap.

        Raises:
            TooLargeError: there is more.
            AnswerStalledError: nothing came for `idle_s`.
        """
        chunks, size = [], 0
        while chunk := await _next(response.content, idle_s):
            chunks.append(chunk)
            size += len(chunk)
            if size > self._max_body_bytes:
                response.close()
                raise TooLargeError(response.status)
        return b"".join(chunks)


async def _next(content: aiohttp.StreamReader, idle_s: float) -> bytes:
    clock = asyncio.timeout(idle_s)
    try:
        async with clock:
            return await content.readany()
    except TimeoutError:
        if clock.expired():
            raise AnswerStalledError from None
        raise  # the total clock


class _PieceWise(aiohttp.Payload):
    """Sends a `Body` in bounded parts, and then starts the first-byte clock."""

    def __init__(self, body: Body, timeouts: Timeouts, clock: asyncio.Timeout) -> None:
        super().__init__(body, content_type="application/json")
        self._size = body.size
        self._timeouts = timeouts
        self._clock = clock

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Bodies are never shown, so there is no text of it."""
        raise TypeError("a request body is not decoded")

    async def write(self, writer: AbstractStreamWriter) -> None:
        await self.write_with_length(writer, None)

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        """Write it all; `content_length` is always our own size.

        Raises:
            UploadStalledError: the server took nothing for the idle clock's time.
        """
        body: Body = self._value
        for part in body.parts():
            try:
                async with asyncio.timeout(self._timeouts.idle_s):
                    await writer.write(part)
            except TimeoutError:
                raise UploadStalledError from None
        body.drop()
        with suppress(RuntimeError):  # the response came before the request was whole
            self._clock.reschedule(asyncio.get_running_loop().time() + self._timeouts.first_byte_s)
