"""Is the server slow, or gone? Asked when nothing comes any more, for callers that must come to an end."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import time

from gristmill.preflight import Unusable, preflight
from gristmill.sdk.face import Face
from gristmill.sdk.result import Error

_STALLED_S = 5.0


class Watch:
    """Looks at the server when nothing comes any more: is it slow, or gone?

    Attributes:
        note: what to show meanwhile.
    """

    def __init__(self, face: Face, patience_s: float, logger: logging.Logger) -> None:
        self._face = face
        self._patience_s = patience_s
        self._logger = logger
        self._done = 0
        self._moved_s = self._looked_s = time.monotonic()
        self._gone_since_s: float | None = None
        self._probe: concurrent.futures.Future[str] | None = None
        self.note = ""

    def look(self, done: int) -> Error | None:
        """Why to give up; None to go on."""
        now_s = time.monotonic()
        if done != self._done:
            self._done, self._moved_s, self._gone_since_s, self.note = done, now_s, None, ""
        if self._probe is not None and self._probe.done():
            self._hear(self._probe.result(), now_s)
            self._probe = None
        if self._gone_since_s is not None and now_s - self._gone_since_s > self._patience_s:
            self._logger.error(f"{self.note}, for {self._patience_s:.0f} s; the requests without an answer are failed")
            return Error("endpoint_down", self.note)
        if self._probe is None and now_s - self._moved_s > _STALLED_S and now_s - self._looked_s > _STALLED_S:
            self._looked_s = now_s
            self._probe = self._face.engine.submit(_trouble(self._face.options.endpoints, self._face.options.key))
        return None

    def _hear(self, trouble: str, now_s: float) -> None:
        if not trouble:
            self._gone_since_s, self.note = None, ""
            return
        if self._gone_since_s is None:
            self._gone_since_s = self._moved_s
            self._logger.warning(f"waiting: {trouble}")
        self.note = trouble


async def _trouble(urls: list[str], key: str | None) -> str:
    """What is wrong with the server; empty when it answers."""
    verdicts = await asyncio.to_thread(preflight, urls, key)
    sick = [verdict.problem for verdict in verdicts if isinstance(verdict, Unusable)]
    return sick[0] if len(sick) == len(verdicts) else ""
