"""The one HTTP client of a worker process: one call at a time per slot, and whatever happens becomes a value.

What the hot path leaves out, and why that is sound:

- One session with prebuilt headers and URLs per endpoint; no automatic header, cookie, redirect or retry of aiohttp's.
- The connector's limit is the worker's concurrency, so a slot never waits for a connection.
- Idle connections are kept less long (4 s) than servers keep them (uvicorn 5 s), so a reused one is rarely stale.
- The four clocks are aiohttp's own timers: *connect* from the wish for a connection until it stands (DNS, TCP, TLS),
  *first byte* from the request sent until the response begins, *idle* between two arrivals of the response and between
  two advances of the request, *total* over all. First byte and idle share one timer whose span is changed once the
  headers are there.

A call that must not meet a stale connection (`fresh`) goes through a second session that never reuses one.
"""

from __future__ import annotations

import time
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec

from gristmill.contract.failure import FailureClass
from gristmill.contract.manifest import Timeouts
from gristmilld.upstream.body import Body
from gristmilld.upstream.endpoint import Endpoint
from gristmilld.upstream.exceptions import CAUGHT, Moment, failure_of
from gristmilld.upstream.failures import error_in_ok, refusal
from gristmilld.upstream.outcome import Answer, FailedCall
from gristmilld.upstream.shapes import flatten, one_line, read_answer

KEEPALIVE_S = 4.0
MAX_BODY_BYTES = 64 << 20
DNS_TTL_S = 300
_NO_AUTO_HEADERS = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")

_connected: ContextVar[bool] = ContextVar("connected")
"""Whether the call of this task made a new connection; a call runs in one task from start to end."""


class _TooLargeError(Exception):
    """The response is above the cap."""


class _Connector(aiohttp.TCPConnector):
    """Notes when a call makes a connection instead of reusing one."""

    async def _create_connection(self, *args: Any, **kwargs: Any) -> Any:
        _connected.set(True)
        return await super()._create_connection(*args, **kwargs)


class UpstreamClient:
    """Sends requests to endpoints. Use it as an async context manager, in one loop.

    Attributes:
        concurrency: calls that may be in flight at once; more would wait for a connection.
    """

    def __init__(self, concurrency: int, *, max_body_bytes: int = MAX_BODY_BYTES) -> None:
        self.concurrency = concurrency
        self._max_body_bytes = max_body_bytes
        self._session: aiohttp.ClientSession | None = None
        self._fresh: aiohttp.ClientSession | None = None
        self._clocks: dict[Timeouts, aiohttp.ClientTimeout] = {}

    async def __aenter__(self) -> Self:
        self._session = self._open(force_close=False)
        self._fresh = self._open(force_close=True)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        for session in (self._session, self._fresh):
            if session is not None:
                await session.close()
        self._session = self._fresh = None

    @property
    def connection_limit(self) -> int:
        """Most connections that can be open at once, for a gauge; equal to `concurrency`."""
        connector = self._session.connector if self._session else None
        return connector.limit if connector else 0

    def _open(self, *, force_close: bool) -> aiohttp.ClientSession:
        keepalive: dict[str, Any] = {} if force_close else {"keepalive_timeout": KEEPALIVE_S}
        connector = _Connector(limit=self.concurrency, ttl_dns_cache=DNS_TTL_S, force_close=force_close, **keepalive)
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=_NO_AUTO_HEADERS,
            trust_env=False,
        )

    async def send(
        self,
        endpoint: Endpoint,
        path: str,
        body: Body,
        timeouts: Timeouts,
        *,
        wants_json: bool = False,
        fresh: bool = False,
    ) -> Answer | FailedCall:
        """POST `body` to `path` of `endpoint` once.

        Args:
            wants_json: the request asked for JSON, so an answer whose content is none is `invalid_output`.
            fresh: use a new connection; for the call after a `stale_connection`.

        Whatever the network or the server does is a value; only cancellation raises.
        """
        session = self._fresh if fresh else self._session
        assert session is not None, "the client is not open"
        _connected.set(False)
        begun_s = time.monotonic()
        answered_s = 0.0
        try:
            async with session.post(
                endpoint.target(path),
                data=body.payload(timeouts.idle_s),
                headers=endpoint.headers,
                allow_redirects=False,
                timeout=self._clocks.get(timeouts) or self._new_clock(timeouts),
                ssl=endpoint.tls,
                proxy=endpoint.proxy,
            ) as response:
                answered_s = time.monotonic()
                received = await self._read(response, timeouts)
        except CAUGHT as error:
            now_s = time.monotonic()
            moment = Moment(reused=not _connected.get(), answered=answered_s > 0, elapsed_s=now_s - begun_s)
            return _finish(failure_of(error, moment, timeouts), endpoint, begun_s, answered_s)
        except _TooLargeError:
            return _finish(self._too_large(response.status), endpoint, begun_s, answered_s)
        return _judge(endpoint, path, response, received, begun_s, answered_s, wants_json)

    def _new_clock(self, timeouts: Timeouts) -> aiohttp.ClientTimeout:
        if len(self._clocks) >= 64:
            self._clocks.clear()
        clock = self._clocks[timeouts] = aiohttp.ClientTimeout(
            total=timeouts.total_s, connect=timeouts.connect_s, sock_read=timeouts.first_byte_s
        )
        return clock

    async def _read(self, response: aiohttp.ClientResponse, timeouts: Timeouts) -> bytes:
        """The whole body, at most the cap; from here on the idle clock runs.

        Raises:
            _TooLargeError: there is more.
        """
        content = response.content
        connection = response.connection
        if connection is not None and connection.protocol is not None:
            connection.protocol.read_timeout = timeouts.idle_s
            connection.protocol.start_timeout()
        chunk = await content.readany()
        if content.at_eof():
            return chunk
        chunks, size = [chunk], len(chunk)
        while chunk := await content.readany():
            chunks.append(chunk)
            size += len(chunk)
            if size > self._max_body_bytes:
                response.close()
                raise _TooLargeError
        return b"".join(chunks)

    def _too_large(self, status: int) -> FailedCall:
        return FailedCall(
            FailureClass.BAD_REQUEST,
            f"the answer is larger than {self._max_body_bytes >> 20} MB: ask for less",
            status_code=status,
        )


def _judge(
    endpoint: Endpoint,
    path: str,
    response: aiohttp.ClientResponse,
    received: bytes,
    begun_s: float,
    answered_s: float,
    wants_json: bool,
) -> Answer | FailedCall:
    """What a whole response means."""
    status, headers = response.status, response.headers
    request_id = headers.get("x-request-id")
    if not 200 <= status < 300:
        failure = refusal(status, headers, received)
        return _finish(failure, endpoint, begun_s, answered_s, status, one_line(received), request_id)
    parsed = read_answer(path, received, wants_json=wants_json)
    body = _checked(received)
    if isinstance(parsed, FailedCall) or body is None:
        failure = parsed if isinstance(parsed, FailedCall) else _not_utf8()
        failure = error_in_ok(failure, status, headers, received)
        return _finish(failure, endpoint, begun_s, answered_s, status, one_line(received), request_id)
    return Answer(
        status_code=status,
        body=body,
        request_id=request_id,
        prompt_tokens=parsed.prompt_tokens,
        completion_tokens=parsed.completion_tokens,
        flags=parsed.flags,
        latency_ms=int((time.monotonic() - begun_s) * 1000),
        first_byte_ms=int((answered_s - begun_s) * 1000),
        endpoint=endpoint.name,
    )


def _checked(body: bytes) -> bytes | None:
    """One line of `body`, or None when it is not UTF-8: the JSON decoder does not look into what it skips."""
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError:
            return None
    return flatten(body)


def _not_utf8() -> FailedCall:
    return FailedCall(FailureClass.TRANSIENT, "the answer is not UTF-8")


def _finish(
    failure: FailedCall,
    endpoint: Endpoint,
    begun_s: float,
    answered_s: float,
    status: int | None = None,
    body: bytes | None = None,
    request_id: str | None = None,
) -> FailedCall:
    """The failure with what was seen of the call."""
    return msgspec.structs.replace(
        failure,
        status_code=failure.status_code if status is None else status,
        body=body,
        request_id=request_id,
        latency_ms=int((time.monotonic() - begun_s) * 1000),
        first_byte_ms=int((answered_s - begun_s) * 1000) if answered_s else None,
        endpoint=endpoint.name,
    )
