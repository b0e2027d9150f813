"""Is the server slow, or gone? Asked when no answer comes any more, for callers that must come to an end.

A server counts as gone when it can't be reached, and when the workers have given it up because it fails every call
(its breaker is open). One that is merely slow, that limits its rate, or that refuses requests for what is in them is
there. One `Probe` serves all callers of a client: a thousand threads that wait for slow answers ask it once.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
import time

from gristmill.preflight import Unusable, preflight
from gristmill.queue.store import OUTAGES
from gristmill.sdk.face import Face
from gristmill.sdk.result import Error

_STALLED_S = 5.0


class Probe:
    """What is wrong with the server, asked at most once in a few seconds; for many threads."""

    def __init__(self, face: Face) -> None:
        self._face = face
        self._lock = threading.Lock()
        self._asked_s = 0.0
        self._asking: concurrent.futures.Future[str] | None = None
        self._heard: tuple[float, str] | None = None

    def trouble(self, since_s: float) -> str | None:
        """What is wrong, empty when nothing is; None when nothing was heard of it since `since_s` (monotonic)."""
        now_s = time.monotonic()
        with self._lock:
            if self._asking is not None and self._asking.done():
                self._heard, self._asking = (self._asked_s, self._asking.result()), None
            if self._asking is None and now_s - self._asked_s > _STALLED_S:
                self._asked_s = now_s
                self._asking = self._face.engine.submit(_trouble(self._face))
            return self._heard[1] if self._heard is not None and self._heard[0] > since_s else None


class Watch:
    """Looks at the server when one call gets no answers any more.

    Attributes:
        note: what to show meanwhile.
    """

    def __init__(self, probe: Probe, patience_s: float, logger: logging.Logger) -> None:
        self._probe = probe
        self._patience_s = patience_s
        self._logger = logger
        self._moves = 0
        self._moved_s = time.monotonic()
        self._gone_since_s: float | None = None
        self.note = ""

    def look(self, moves: int) -> Error | None:
        """Why to give up; None to go on.

        Args:
            moves: results so far that only a working server gives.
        """
        now_s = time.monotonic()
        if moves != self._moves:
            self._moves, self._moved_s, self._gone_since_s, self.note = moves, now_s, None, ""
        if now_s - self._moved_s <= _STALLED_S:
            return None
        self._hear(self._probe.trouble(self._moved_s))
        if self._gone_since_s is not None and now_s - self._gone_since_s > self._patience_s:
            self._logger.error(f"{self.note}, for {self._patience_s:.0f} s; the requests without an answer are failed")
            return Error("endpoint_down", self.note)
        return None

    def _hear(self, trouble: str | None) -> None:
        if trouble is None:
            return
        if trouble and self._gone_since_s is None:
            self._gone_since_s = self._moved_s
            self._logger.warning(f"waiting: {trouble}")
        elif not trouble:
            self._gone_since_s = None
        self.note = trouble


async def _trouble(face: Face) -> str:
    """What is wrong with the server; empty when it answers."""
    verdicts = await asyncio.to_thread(preflight, face.options.endpoints, face.options.key)
    sick = [verdict.problem for verdict in verdicts if isinstance(verdict, Unusable)]
    if len(sick) == len(verdicts):
        return sick[0] if sick else ""
    with contextlib.suppress(*OUTAGES):  # the store is looked after elsewhere
        if await face.core.all_given_up():
            return f"{', '.join(face.options.endpoints)} fails every call"
    return ""
