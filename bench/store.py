"""The store for the measurements: the embedded one, as `producer run` starts it, but started here.

The clients join it by `--state-dir`. So they work as they do by default, and the server is no child of theirs: its CPU
is counted apart, from its own INFO.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Self

from redis import Redis

from gristmill.embedded import EmbeddedStore

REWRITE_S = 60


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
        """User and system seconds that the server has used so far, its log's rewrites by child processes included."""
        info = self._redis.info("cpu")
        kinds = ("used_cpu_user", "used_cpu_sys", "used_cpu_user_children", "used_cpu_sys_children")
        return sum(float(info[kind]) for kind in kinds)

    def empty(self) -> None:
        """Drop all data and begin a new log, as a store has it that was just started."""
        self._wait_rewritten()
        self._redis.flushall()
        self._redis.bgrewriteaof()
        self._wait_rewritten()

    def jobs(self) -> int:
        """Jobs that workers may have something to do for."""
        return int(self._redis.zcard("gm:run"))

    def _wait_rewritten(self) -> None:
        deadline = time.monotonic() + REWRITE_S
        while time.monotonic() < deadline:
            info = self._redis.info("persistence")
            if not info["aof_rewrite_in_progress"] and not info["aof_rewrite_scheduled"]:
                return
            time.sleep(0.05)
