"""The connections of one client: makes them, lends each to one call at a time, and watches the clocks of all.

Idle connections are kept 4 s, less long than servers keep them (uvicorn 5 s), and the one that was used last is used
next, so a reused one is rarely stale and surplus ones go. At most `concurrency` calls are under way at once; a worker
has no more slots than that, so none of its calls ever waits here.

The clocks have no timer per call. One sweep over the open connections every `SWEEP_S` ends the calls of which a clock
has run out, hence up to so much too late and never too early, and closes what was idle too long. *Connect*, which few
calls meet, has a timer of its own, from the wish for a connection until it stands (a place among the calls, DNS, TCP,
TLS).
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from time import monotonic

from gristmill.contract.manifest import Timeouts
from gristmilld.upstream.body import Body
from gristmilld.upstream.connection import Connection
from gristmilld.upstream.dial import Dialler, Origin
from gristmilld.upstream.endpoint import Endpoint
from gristmilld.upstream.exceptions import NOT_CONNECTED, no_connection, ran_out
from gristmilld.upstream.outcome import Clock, FailedCall
from gristmilld.upstream.wire import Reply

KEEPALIVE_S = 4.0
SWEEP_S = 0.1
_CLOSING_S = 1.0
"""Longest wait for closed connections to be gone."""


class Connections:
    """See the module's head. Use it in one loop; `close` it at the end."""

    def __init__(self, concurrency: int, max_body_bytes: int) -> None:
        self._max_body_bytes = max_body_bytes
        self._free = concurrency
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._dialler = Dialler(self._make)
        self._idle: dict[Origin, list[Connection]] = {}
        self._open: set[Connection] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._emptied = asyncio.Event()
        self._closed = False

    async def post(
        self, endpoint: Endpoint, path: str, body: Body, timeouts: Timeouts, begun_s: float, *, fresh: bool
    ) -> Reply | FailedCall:
        """Send one request; what came back, or why nothing did. Only cancellation raises.

        Args:
            begun_s: when the call began.
            fresh: use a new connection.
        """
        whole = body.whole()
        if self._free:
            self._free -= 1
        else:
            late = await self._wait_for_place(timeouts)
            if late is not None:
                return late
        try:
            origin = endpoint.origin
            connection = None if fresh else self._take_idle(origin)
            if connection is None:
                made = await self._connect(origin, timeouts, begun_s)
                if isinstance(made, FailedCall):
                    return made
                connection = made
            outcome = await connection.exchange(endpoint.head(path), body, whole, timeouts, begun_s)
            if connection.reusable:
                connection.moved_s = monotonic()
                self._idle[origin].append(connection)
            else:
                connection.abort()
            return outcome
        finally:
            self._give_place_on()

    async def close(self) -> None:
        """Close every connection, also those that carry a call; calls that still wait for one fail. Twice is fine."""
        self._closed = True
        self._dialler.close()
        for connection in list(self._open):
            connection.abort()
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        if self._open:
            self._emptied.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLOSING_S):
                    await self._emptied.wait()

    # -- where a call gets its connection -------------------------------------------------------------------------

    async def _wait_for_place(self, timeouts: Timeouts) -> FailedCall | None:
        """Wait until a place is handed over by the call that ends; a place that came too late is handed on."""
        clock, limit_s = _first_clock(timeouts)
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            async with asyncio.timeout(limit_s):
                await place
        except TimeoutError:
            self._decline(place)
            return ran_out(clock, timeouts)
        except asyncio.CancelledError:
            self._decline(place)
            raise
        return None

    def _decline(self, place: asyncio.Future[None]) -> None:
        if place.done() and not place.cancelled():
            self._give_place_on()

    def _give_place_on(self) -> None:
        """To the call that waits longest, if one does."""
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                return
        self._free += 1

    def _take_idle(self, origin: Origin) -> Connection | None:
        """The idle connection that was used last, unless it was idle too long."""
        idle = self._idle.get(origin)
        while idle:
            connection = idle.pop()
            if connection.reusable and monotonic() - connection.moved_s <= KEEPALIVE_S:
                return connection
            connection.abort()
        return None

    async def _connect(self, origin: Origin, timeouts: Timeouts, begun_s: float) -> Connection | FailedCall:
        clock, limit_s = _first_clock(timeouts)
        try:
            async with asyncio.timeout(limit_s - (monotonic() - begun_s)) as timer:
                connection = await self._dialler.dial(origin)
        except NOT_CONNECTED as error:  # among them TimeoutError, which the system's own time-out is too
            return ran_out(clock, timeouts) if timer.expired() else no_connection(error)
        self._idle.setdefault(origin, [])
        self._watch(connection)
        return connection

    def _make(self) -> Connection:
        return Connection(self._max_body_bytes, self._on_lost)

    def _watch(self, connection: Connection) -> None:
        """Keep an eye on a new connection, unless it is lost already; once closed, nothing is begun any more."""
        if connection.lost:
            return
        if self._closed:
            connection.abort()
            return
        self._open.add(connection)
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)

    def _on_lost(self, connection: Connection) -> None:
        self._open.discard(connection)
        if not self._open:
            self._emptied.set()

    # -- the clocks -----------------------------------------------------------------------------------------------

    def _sweep(self) -> None:
        now_s = monotonic()
        for connection in tuple(self._open):
            if connection.busy:
                connection.check(now_s)
        for idle in self._idle.values():
            while idle and (not idle[0].reusable or now_s - idle[0].moved_s > KEEPALIVE_S):
                idle.pop(0).abort()
        self._sweeper = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep) if self._open else None


def _first_clock(timeouts: Timeouts) -> tuple[Clock, float]:
    """The clock that runs out first while there is no connection, and its span."""
    if timeouts.connect_s <= timeouts.total_s:
        return Clock.CONNECT, timeouts.connect_s
    return Clock.TOTAL, timeouts.total_s
