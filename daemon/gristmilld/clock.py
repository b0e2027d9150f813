"""Time: one monotonic clock for durations, one wall clock for what people and other machines read.

The two never share a variable. Everything that waits, times out or measures takes `monotonic_s`; only time stamps in
logs, manifests and metrics take `wall_ms`. What is tested with a clock that moves when it is told takes a `Clock`.
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
