"""Time: one monotonic clock for durations, one wall clock for what people and other machines read.

The two never share a variable. Everything that waits, times out or measures takes `monotonic_s`; only time stamps in
logs, manifests and metrics take `wall_ms`. Tests put a `ManualClock` where a part takes a `Clock`.
"""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], float]
"""Returns seconds on some monotonic scale."""


def monotonic_s() -> float:
    """Seconds since some fixed point; never goes back, the same scale in every process of this machine."""
    return time.monotonic()


def wall_ms() -> int:
    """Milliseconds since the epoch; may jump, in either direction."""
    return time.time_ns() // 1_000_000


class ManualClock:
    """A monotonic clock that moves only when told, for tests and simulations."""

    def __init__(self, start_s: float = 1000.0) -> None:
        self.now_s = start_s

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        assert seconds >= 0, "a monotonic clock never goes back"
        self.now_s += seconds
