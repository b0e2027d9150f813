"""The store for the measurements: the embedded one, as `producer run` starts it, but started here.

The clients join it by `--state-dir`. So they work as they do by default, and the server is no child of theirs: its CPU
is counted apart, from its own INFO.
"""

from __future__ import annotations

from pathlib import Path
from typing import Self

from redis import Redis

from gristmill.embedded import EmbeddedStore


class Store:
    """An embedded store of its own in `state_dir`, for as long as a `with` block lasts."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self._embedded: EmbeddedStore | None = None

    def __enter__(self) -> Self:
        self._embedded = EmbeddedStore.open(self.state_dir)
        self._redis = Redis.from_url(self._embedded.url)
        return self

    def __exit__(self, *_: object) -> None:
        self._redis.close()
        if self._embedded is not None:
            self._embedded.close()

    def cpu_s(self) -> float:
        """User and system seconds that the server has used so far, without its children."""
        info = self._redis.info("cpu")
        return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])

    def empty(self) -> None:
        self._redis.flushall()
