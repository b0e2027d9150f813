"""What the stand-in has been asked so far: ``GET /stats``, and from nought again after ``POST /stats/reset``."""

from __future__ import annotations

import hashlib
from collections import Counter

import msgspec

CUT = "cut"
"""What `by_status` calls a connection that was ended without a whole answer."""


class Stats:
    """Counters; `distinct` counts different bodies by a 128-bit hash, so a body sent twice shows.

    `faulted` counts the requests that a planted fault took, by status or kind: the others were honestly worked on.
    """

    def __init__(self) -> None:
        self.in_flight = 0
        self.running = 0
        self.reset()

    def reset(self) -> None:
        """From nought again; what is in flight stays."""
        self.requests = 0
        self.images = 0
        self.in_flight_max = self.in_flight
        self.by_status: Counter[str] = Counter()
        self.faulted: Counter[str] = Counter()
        self._bodies: set[bytes] = set()

    def begin(self, body: bytes) -> None:
        self.requests += 1
        self._bodies.add(hashlib.blake2b(body, digest_size=16).digest())
        self.in_flight += 1
        self.in_flight_max = max(self.in_flight_max, self.in_flight)

    def encode(self) -> bytes:
        return msgspec.json.encode(
            {
                "requests": self.requests,
                "distinct": len(self._bodies),
                "images": self.images,
                "in_flight": self.in_flight,
                "in_flight_max": self.in_flight_max,
                "by_status": self.by_status,
                "faulted": self.faulted,
            }
        )
