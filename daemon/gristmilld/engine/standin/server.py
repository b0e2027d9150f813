"""The stand-in's HTTP server: routes a request, counts it, waits, answers or misbehaves.

aiohttp's low-level server, without an application around it: routing is one dictionary, so that the stand-in costs
less than what is measured against it.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

from aiohttp import web

from gristmilld.engine.standin import answers, wire
from gristmilld.engine.standin.content import RefusedError, decode_pictures, parts, read_request, see
from gristmilld.engine.standin.faults import Fault
from gristmilld.engine.standin.settings import Control, Settings, read_control
from gristmilld.engine.standin.stats import CUT, Stats

CALLS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/embeddings": "embeddings",
    "/v1/responses": "responses",
}
MAX_BODY_BYTES = 256 << 20
KEEPALIVE_S = 5.0
"""As uvicorn's."""
BACKLOG = 4096
SHUTDOWN_S = 0.2
"""Requests in flight have so long to end when it is closed."""


class _Connection(web.RequestHandler):
    """A connection that knows how many requests it has carried."""

    __slots__ = ("carried",)

    def __init__(self, server: web.Server, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(
            server,
            loop=loop,
            access_log=None,  # type: ignore[arg-type]  # None is how aiohttp turns it off
            keepalive_timeout=KEEPALIVE_S,
        )
        self.carried = 0


class _Server(web.Server):
    """Makes `_Connection`s, and requests that may be large."""

    def __call__(self) -> web.RequestHandler:
        return _Connection(self, self._loop)

    def _make_request(self, message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
        return web.BaseRequest(message, payload, protocol, writer, task, self._loop, client_max_size=MAX_BODY_BYTES)


class StandIn:
    """One stand-in endpoint. Start it once; `close` returns when it is closed, and may be called again."""

    def __init__(self, control: Control | None = None, *, seed: int | None = None) -> None:
        self.settings = Settings()
        self.stats = Stats()
        self._numbers = itertools.count(1)
        self.port = 0
        self._chance = random.Random(seed)
        self._places: asyncio.Semaphore | None = None
        self._runner: web.ServerRunner | None = None
        if control is not None:
            self.apply(control)

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen; port 0 takes a free one, see `port`.

        Raises:
            OSError: the address cannot be listened on.
        """
        self._runner = web.ServerRunner(_Server(self._handle, handler_cancellation=True), shutdown_timeout=SHUTDOWN_S)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port, backlog=BACKLOG).start()
        self.port = self._runner.addresses[0][1]

    async def close(self) -> None:
        """Stop listening and end every connection."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def apply(self, control: Control) -> None:
        """Change the settings from now on.

        Raises:
            ValueError: the latency is none.
        """
        self.settings.apply(control)
        places = self.settings.concurrency
        self._places = asyncio.Semaphore(places) if places else None

    # -- routes ---------------------------------------------------------------------------------------------------

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        call = CALLS.get(request.path)
        if call is None:
            return await self._other(request)
        if request.method != "POST":
            return _json(405, b'{"detail":"Method Not Allowed"}')
        return await self._counted(call, request)

    async def _other(self, request: web.BaseRequest) -> web.StreamResponse:
        stats = self.stats
        match request.method, request.path:
            case "GET", "/v1/models":
                refused = self._refused(request)
                return refused or _json(200, answers.models())
            case "GET", "/metrics":
                text = answers.metrics(stats.running, stats.in_flight - stats.running)
                return web.Response(body=text, content_type="text/plain")
            case "GET", "/health":
                return web.Response()
            case "GET", "/stats":
                return _json(200, stats.encode())
            case "POST", "/stats/reset":
                stats.reset()
                return _json(200, b"{}")
            case "POST", "/control":
                return await self._control(request)
        return _json(404, b'{"detail":"Not Found"}')

    async def _control(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            self.apply(read_control(await request.read()))
        except ValueError as error:
            return _json(400, answers.error(400, str(error)))
        return _json(200, b"{}")

    def _refused(self, request: web.BaseRequest) -> web.Response | None:
        key = self.settings.key
        if key is None or request.headers.get("Authorization") == f"Bearer {key}":
            return None
        return _json(401, answers.error(401, "Unauthorized"))

    # -- calls ----------------------------------------------------------------------------------------------------

    async def _counted(self, call: str, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        connection = request.protocol
        reused = isinstance(connection, _Connection) and connection.carried > 0
        if isinstance(connection, _Connection):
            connection.carried += 1
        self.stats.begin(body)
        status = CUT
        try:
            response = await self._in_place(call, request, body, reused=reused)
            status = str(response.status) if response is not None else CUT
        finally:
            self.stats.in_flight -= 1
            self.stats.by_status[status] += 1
        return response if response is not None else web.Response()  # the connection is gone: nobody reads it

    async def _in_place(
        self, call: str, request: web.BaseRequest, body: bytes, *, reused: bool
    ) -> web.StreamResponse | None:
        """The response, once there is a place to work on it; None when the connection was ended instead."""
        places = self._places
        if places is not None:
            await places.acquire()
        self.stats.running += 1
        try:
            return self._refused(request) or await self._respond(call, request, body, reused=reused)
        finally:
            self.stats.running -= 1
            if places is not None:
                places.release()

    async def _respond(
        self, call: str, request: web.BaseRequest, body: bytes, *, reused: bool
    ) -> web.StreamResponse | None:
        fault = None
        for candidate in self.settings.faults:
            if candidate.takes(request.path, body, self._chance, reused=reused):
                fault = candidate
                break
        if fault is not None:
            self.stats.faulted[str(fault.status) if fault.kind == "status" else fault.kind] += 1
            if fault.kind not in {"stall_mid", "idle_cut"} and fault.delay_s:
                await asyncio.sleep(fault.delay_s)
            broken = self._broken(fault, request, body)
            if broken is not None or fault.kind in {"reset", "close"}:
                return broken
        return await self._answered(call, request, body, fault)

    def _broken(self, fault: Fault, request: web.BaseRequest, body: bytes) -> web.StreamResponse | None:
        """What a fault sends instead of an answer; None for those that end the connection or bend an answer."""
        match fault.kind:
            case "status":
                return _refusal(fault, _text_of(body) if fault.echo else "planted by /control")
            case "error_200":
                return _json(200, _bytes(fault) or answers.error(500, "planted by /control"))
            case "garbage":
                return _json(200, _bytes(fault) or b'{"choices": [{"mess')
            case "html":
                return web.Response(body=_bytes(fault) or b"<html><body>hello</body></html>", content_type="text/html")
            case "empty":
                return _json(200, b"")
            case "not_an_answer":
                return _json(200, _bytes(fault) or b'{"status":"ok"}')
            case "redirect":
                return web.Response(status=307, headers={"Location": fault.location})
            case "reset":
                wire.reset(request.transport)
            case "close":
                wire.end(request.transport)
        return None

    async def _answered(
        self, call: str, request: web.BaseRequest, body: bytes, fault: Fault | None
    ) -> web.StreamResponse | None:
        try:
            asked = read_request(body)
            texts, urls = parts(asked)
            pictures = await asyncio.to_thread(decode_pictures, urls) if urls else []
        except RefusedError as error:
            return _json(400, answers.error(400, str(error)))
        if self.settings.strict_model and asked.model != answers.MODEL:
            return _json(404, answers.error(404, f"The model `{asked.model}` does not exist."))
        self.stats.images += len(pictures)
        if self.settings.latency is not None:
            await asyncio.sleep(self.settings.latency(self._chance.random()))
        seen = see(texts, pictures)
        content, finish = _bent(answers.content_of(seen), fault)
        usage = answers.usage_of(seen, content)
        number = next(self._numbers)
        if asked.stream and call == "chat":
            return await _stream(request, answers.events(number, asked, content, usage, finish))
        whole = answers.answer(call, number, asked, content, usage, finish)
        return await _deliver(request, whole, fault, number)


def _bent(content: str, fault: Fault | None) -> tuple[str, str]:
    """Content and finish reason, as a fault wants them."""
    if fault is not None and fault.kind == "content":
        return fault.body or "", "stop"
    if fault is not None and fault.kind == "finish":
        return (content[: len(content) // 2] if fault.reason == "length" else content), fault.reason
    return content, "stop"


async def _deliver(
    request: web.BaseRequest, body: bytes, fault: Fault | None, number: int
) -> web.StreamResponse | None:
    """Send a whole answer, or half of it, or all and then cut the connection."""
    kind = fault.kind if fault is not None else None
    if fault is not None and kind in {"truncated", "stall_mid"}:
        await wire.halves(request, body, fault.delay_s if kind == "stall_mid" else None)
        return None
    if fault is not None and kind == "idle_cut":
        asyncio.get_running_loop().call_later(fault.delay_s, wire.end, request.transport)
    return _json(200, body, {"x-request-id": f"standin-{number}"})


async def _stream(request: web.BaseRequest, events: Iterator[bytes]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for event in events:
        await response.write(event)
    await response.write_eof()
    return response


def _refusal(fault: Fault, message: str) -> web.Response:
    """An error status, with the wait that it asks for where the fault says."""
    headers: dict[str, str] = {}
    more: dict[str, object] = {}
    wait_s = fault.retry_after
    if wait_s is not None:
        match fault.retry_after_in:
            case "header":
                headers["Retry-After"] = f"{wait_s:g}"
            case "date":
                headers["Retry-After"] = format_datetime(datetime.now(UTC) + timedelta(seconds=wait_s), usegmt=True)
            case "body":
                more["retry_after"] = wait_s
            case "words":
                message = f"{message}: please try again in {wait_s:g}s."
    return _json(fault.status, _bytes(fault) or answers.error(fault.status, message, **more), headers)


def _text_of(body: bytes) -> str:
    """All the text of a request, for an error that echoes it."""
    try:
        return "\n".join(parts(read_request(body))[0])
    except RefusedError:
        return ""


def _bytes(fault: Fault) -> bytes | None:
    return None if fault.body is None else fault.body.encode()


_JSON = "application/json"


def _json(status: int, body: bytes, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(status=status, body=body, headers={"Content-Type": _JSON} | (headers or {}))
