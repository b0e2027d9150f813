"""Which lines of INPUT are meant: all, the first so many, or a sample.

A sample is deterministic, and stable while the input grows at its end: each place has a fixed pseudo-random rank, and
the lowest N ranks are chosen. So the same command finds its finished lines again.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from gristmill.intake.readers import open_lines

_MASK = (1 << 64) - 1


class Selection:
    """Answers by place, which is the count of lines before that are not blank.

    Attributes:
        end: no line at or after this place is meant; None is no end.
    """

    def __init__(self, limit: int | None = None, places: frozenset[int] | None = None) -> None:
        self._places = places
        self._limit = limit
        self.end = limit if places is None else max(places, default=-1) + 1

    def only(self, ordinals: Sequence[int], skipped: Sequence[int] = ()) -> Selection:
        """Of these lines the ones with `ordinals`, which count all but those at the places `skipped`."""
        gone, wanted = frozenset(skipped), frozenset(ordinals)
        places = count() if self._places is None else sorted(self._places)
        kept = (place for place in places if place not in gone)
        chosen = zip(range(max(wanted, default=-1) + 1), kept, strict=False)
        return Selection(self._limit, frozenset(place for ordinal, place in chosen if ordinal in wanted))

    def __contains__(self, place: int) -> bool:
        return self._places is None or place in self._places


def select(
    path: str | Path, limit: int | None, sample: int | None, *, max_line_bytes: int, arrays: bool = False
) -> Selection:
    """The lines of `path` that are meant. A sample reads the input once; `limit` says of how many lines.

    Raises:
        InputError: the input can't be read.
    """
    if sample is None:
        return Selection(limit)
    total = 0
    for _ in open_lines(path, max_line_bytes=max_line_bytes, arrays=arrays):
        if limit is not None and total >= limit:
            break
        total += 1
    return Selection(limit, frozenset(heapq.nsmallest(sample, range(total), key=_rank)))


def _rank(place: int) -> int:
    """splitmix64: a well-mixed 64-bit value of a small number."""
    z = (place + 1) * 0x9E3779B97F4A7C15 & _MASK
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & _MASK
    return z ^ z >> 31
