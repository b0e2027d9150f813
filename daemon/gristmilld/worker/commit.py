"""What goes back to the store: gathered, sent in batches, kept for a while.

A batch that was sent but not answered is sent again as it was: the store's scripts are idempotent, so a lost reply
costs a round trip and nothing else. Records that the store took are remembered up to a number of bytes: should the
store come back without its last seconds, they are sent again instead of being paid for twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gristmill.queue.replies import Finished, Returned
from gristmilld.clock import Clock

BATCH = 128
"""Records that fill a batch."""
MAX_BATCH = 1000
MAX_BATCH_BYTES = 8 << 20
FLUSH_AFTER_S = 0.1
"""A record waits no longer than this for others to join it."""


class Batch(NamedTuple):
    finished: Sequence[Finished]
    returned: Sequence[Returned]

    def __bool__(self) -> bool:
        return bool(self.finished or self.returned)

    def indices(self) -> Iterator[int]:
        yield from (one.index for one in self.finished)
        yield from (one.index for one in self.returned)


class CommitBuffer:
    """Results on their way to the store; belongs to one job of one worker."""

    def __init__(self, clock: Clock, *, recent_bytes: int = 16 << 20) -> None:
        self._clock = clock
        self._finished: deque[Finished] = deque()
        self._returned: deque[Returned] = deque()
        self._since_s: float | None = None
        self._recent: deque[Finished] = deque()
        self._recent_bytes = 0
        self._recent_limit = recent_bytes

    def __len__(self) -> int:
        return len(self._finished) + len(self._returned)

    @property
    def full(self) -> bool:
        return len(self) >= BATCH

    def due(self) -> bool:
        """Whether a batch should go now: it is full, or its oldest result has waited long enough."""
        return self.full or (self._since_s is not None and self._clock() - self._since_s >= FLUSH_AFTER_S)

    def finish(self, finished: Finished) -> None:
        self._finished.append(finished)
        self._mark()

    def give_back(self, returned: Returned) -> None:
        self._returned.append(returned)
        self._mark()

    def _mark(self) -> None:
        if self._since_s is None:
            self._since_s = self._clock()

    def peek(self) -> Batch:
        """The next batch; it stays in the buffer until `drop`, so that a lost reply loses nothing."""
        finished: list[Finished] = []
        batch_bytes = 0
        for one in self._finished:
            if len(finished) == MAX_BATCH or (finished and batch_bytes + len(one.record) > MAX_BATCH_BYTES):
                break
            finished.append(one)
            batch_bytes += len(one.record)
        returned = [self._returned[i] for i in range(min(len(self._returned), MAX_BATCH))]
        return Batch(finished, returned)

    def drop(self, batch: Batch) -> None:
        """The store has answered `batch`, which is the one that `peek` gave."""
        for _ in batch.finished:
            self._remember(self._finished.popleft())
        for _ in batch.returned:
            self._returned.popleft()
        self._since_s = self._clock() if len(self) else None

    def replay(self) -> None:
        """The store lost a suffix of its history: queue the remembered records once more, first ones first."""
        again = list(self._recent)
        self._recent.clear()
        self._recent_bytes = 0
        self._finished.extendleft(reversed(again))
        if again:
            self._mark()

    def _remember(self, finished: Finished) -> None:
        self._recent.append(finished)
        self._recent_bytes += len(finished.record)
        while self._recent_bytes > self._recent_limit:
            self._recent_bytes -= len(self._recent.popleft().record)
