"""The one HTTP client of a worker process: one call at a time per slot, and whatever happens becomes a value.

There are two ways to an endpoint. The *lean* one is our own: bytes made once per endpoint and path, one write, one
reader, no object per call that nobody asks for (`connections`, `connection`, `wire`). It costs a quarter of the
*ordinary* one, which is aiohttp's and is taken for endpoints behind a proxy or set up so (`ordinary`). Both speak
HTTP/1.1, send no header but ours, follow no redirect, retry nothing and end each call by four clocks: *connect* from
the wish for a connection until it stands (DNS, TCP, TLS), *first byte* from the request sent until the response's head
is there, *idle* between two arrivals of the response and between two advances of the request, *total* over all.

What a whole response means is judged here, the same for both.
"""

from __future__ import annotations

from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Self

import msgspec

from gristmill.contract.failure import FailureClass
from gristmill.contract.manifest import Timeouts
from gristmilld.upstream.body import Body
from gristmilld.upstream.connections import Connections
from gristmilld.upstream.endpoint import Endpoint
from gristmilld.upstream.failures import error_in_ok, refusal
from gristmilld.upstream.outcome import Answer, FailedCall
from gristmilld.upstream.shapes import flatten, one_line, read_answer
from gristmilld.upstream.wire import Reply

if TYPE_CHECKING:
    from gristmilld.upstream.ordinary import Ordinary

MAX_BODY_BYTES = 64 << 20


class UpstreamClient:
    """Sends requests to endpoints. Use it as an async context manager, in one loop.

    Args:
        concurrency: calls that may be in flight at once; more wait for a place.
        max_body_bytes: cap of a response's body.
        lean: False takes the ordinary way to every endpoint.
    """

    def __init__(self, concurrency: int, *, max_body_bytes: int = MAX_BODY_BYTES, lean: bool = True) -> None:
        self.concurrency = concurrency
        self._max_body_bytes = max_body_bytes
        self._use_lean = lean
        self._lean: Connections | None = None
        self._ordinary: Ordinary | None = None

    async def __aenter__(self) -> Self:
        self._lean = Connections(self.concurrency, self._max_body_bytes)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        for way in (self._lean, self._ordinary):
            if way is not None:
                await way.close()
        self._lean = self._ordinary = None

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
        assert self._lean is not None, "the client is not open"
        way = self._lean if self._use_lean and not endpoint.ordinary else self._aiohttp()
        begun_s = monotonic()
        reply = await way.post(endpoint, path, body, timeouts, begun_s, fresh=fresh)
        if isinstance(reply, Reply):
            return _judge(endpoint.name, path, reply, begun_s, wants_json)
        return msgspec.structs.replace(reply, latency_ms=_ms(monotonic() - begun_s), endpoint=endpoint.name)

    def _aiohttp(self) -> Ordinary:
        """The ordinary way, made when first needed: loading aiohttp takes as long as the rest of a worker's start."""
        if self._ordinary is None:
            from gristmilld.upstream.ordinary import Ordinary

            self._ordinary = Ordinary(self.concurrency, self._max_body_bytes)
        return self._ordinary


def _judge(endpoint: str, path: str, reply: Reply, begun_s: float, wants_json: bool) -> Answer | FailedCall:
    """What a whole response means."""
    status, headers, received = reply.status, reply.headers, reply.body
    if not 200 <= status < 300:
        return _refused(refusal(status, headers, received), endpoint, reply, begun_s)
    parsed = read_answer(path, received, wants_json=wants_json)
    if isinstance(parsed, FailedCall):
        return _refused(error_in_ok(parsed, status, headers, received), endpoint, reply, begun_s)
    body = _checked(received)
    if body is None:
        return _refused(error_in_ok(_not_utf8(), status, headers, received), endpoint, reply, begun_s)
    return Answer(
        status_code=status,
        body=body,
        request_id=headers.get("x-request-id"),
        prompt_tokens=parsed.prompt_tokens,
        completion_tokens=parsed.completion_tokens,
        flags=parsed.flags,
        latency_ms=_ms(monotonic() - begun_s),
        first_byte_ms=_ms(reply.answered_s - begun_s),
        endpoint=endpoint,
    )


def _refused(failure: FailedCall, endpoint: str, reply: Reply, begun_s: float) -> FailedCall:
    """The failure with what was seen of the call; its body is kept whole."""
    return msgspec.structs.replace(
        failure,
        status_code=reply.status,
        body=one_line(reply.body),
        request_id=reply.headers.get("x-request-id"),
        latency_ms=_ms(monotonic() - begun_s),
        first_byte_ms=_ms(reply.answered_s - begun_s),
        endpoint=endpoint,
    )


def _ms(span_s: float) -> int:
    return int(span_s * 1000)


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
