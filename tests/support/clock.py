"""A clock that a test moves."""

from __future__ import annotations


class ManualClock:
    """A monotonic clock that moves only when told; a `gristmilld.clock.Clock`."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        assert seconds >= 0, "a monotonic clock never goes back"
        self.now_s += seconds
