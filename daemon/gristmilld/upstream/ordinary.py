"""Calls by way of aiohttp: for endpoints behind a proxy, which our own connections do not speak to.

Same words, same clocks, same results as `connections`; twice the cost. Idle connections are kept as long as there. A
call that must not meet a stale connection goes through a second session that never reuses one.

The clocks: *connect*, *idle* and *total* are aiohttp's own timers. *First byte* is ours, since aiohttp's would begin
anew with each byte of a head that drips; it begins when the body has been written.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from contextvars import ContextVar
from time import monotonic
from typing import Any

import aiohttp
import msgspec
from aiohttp.abc import AbstractStreamWriter

from gristmill.contract.manifest import Timeouts
from gristmilld.upstream.body import Body
from gristmilld.upstream.connections import KEEPALIVE_S
from gristmilld.upstream.dial import DNS_TTL_S
from gristmilld.upstream.endpoint import Endpoint
from gristmilld.upstream.exceptions import CAUGHT, HeadTimeoutError, Moment, UploadStalledError, failure_of, too_large
from gristmilld.upstream.outcome import FailedCall
from gristmilld.upstream.wire import Reply, TooLargeError

_NO_AUTO_HEADERS = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")

_connected: ContextVar[bool] = ContextVar("connected")
"""Whether the call of this task made a new connection; a call runs in one task from start to end."""


class _Connector(aiohttp.TCPConnector):
    """Notes when a call makes a connection instead of reusing one."""

    async def _create_connection(self, *args: Any, **kwargs: Any) -> Any:
        _connected.set(True)
        return await super()._create_connection(*args, **kwargs)


class Ordinary:
    """See the module's head. Make it in the loop that uses it; `close` it at the end."""

    def __init__(self, concurrency: int, max_body_bytes: int) -> None:
        self._concurrency = concurrency
        self._max_body_bytes = max_body_bytes
        self._session = self._open(keepalive_timeout=KEEPALIVE_S)
        self._fresh = self._open(force_close=True)

    def _open(self, **keeping: Any) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=_Connector(limit=self._concurrency, ttl_dns_cache=int(DNS_TTL_S), **keeping),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=_NO_AUTO_HEADERS,
            trust_env=False,
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
        _connected.set(False)
        answered_s = 0.0
        try:
            async with await self._ask(endpoint, path, body, timeouts, fresh=fresh) as response:
                answered_s = monotonic()
                received = await self._read(response, timeouts)
        except CAUGHT as error:
            reused, elapsed_s = not _connected.get(), monotonic() - begun_s
            moment = Moment(reused=reused, answered=answered_s > 0, begun=False, elapsed_s=elapsed_s)
            failure = failure_of(error, moment, timeouts)
        except TooLargeError as error:
            failure = too_large(error.status, self._max_body_bytes)
        else:
            return Reply(response.status, response.headers, received, answered_s)
        if answered_s:
            return msgspec.structs.replace(failure, first_byte_ms=int((answered_s - begun_s) * 1000))
        return failure

    async def _ask(
        self, endpoint: Endpoint, path: str, body: Body, timeouts: Timeouts, *, fresh: bool
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
                )
        except TimeoutError:
            if clock.expired():
                raise HeadTimeoutError from None
            raise

    async def _read(self, response: aiohttp.ClientResponse, timeouts: Timeouts) -> bytes:
        """The whole body, at most the cap; from here on the idle clock runs.

        Raises:
            TooLargeError: there is more.
        """
        connection = response.connection
        if connection is not None and connection.protocol is not None:
            connection.protocol.read_timeout = timeouts.idle_s
            connection.protocol.start_timeout()
        chunks, size = [], 0
        while chunk := await response.content.readany():
            chunks.append(chunk)
            size += len(chunk)
            if size > self._max_body_bytes:
                response.close()
                raise TooLargeError(response.status)
        return b"".join(chunks)


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
