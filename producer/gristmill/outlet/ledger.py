"""The durable set of the current job: which ordinals are finished, and where their lines lie.

One ledger joins the segments of a generation (all sessions that collected for the same job into the same work folder),
the order map over them, and the rows that the feeder carried over from earlier runs. Everything in it can be built
anew from the segments and the carried file, which is what the constructor does.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

from gristmill.contract.failure import CLASSES, FailureClass
from gristmill.outlet.carried import CarriedReader, carried_path
from gristmill.outlet.order import OrderMap
from gristmill.outlet.rows import IndexRow, Place, Span
from gristmill.outlet.segments import Entry, SegmentWriter, read_index

_ROWS_AT_ONCE = 4096

SPAN_BYTES = 4 << 20
"""Neighbouring lines are read and written together up to about this size."""


class Ledger:
    """Opens the generation that began with segment `generation`; the folder's lock must be held.

    Attributes:
        new: lines finished by this generation's own job.
        failed: how many of them failed, by class.
        line_bytes: their length.

    Raises (all methods):
        DiskError: a file cannot be made, written or read.
    """

    def __init__(self, folder: Path, generation: int, segments: Sequence[int]) -> None:
        self.folder = folder
        self.generation = generation
        self.failed: dict[FailureClass, int] = {}
        self.line_bytes = 0
        self.carried = CarriedReader(carried_path(folder, generation))
        self.order = OrderMap(folder / "order")
        for number in segments:
            if number >= generation:
                self._load(number)
        self._writer = SegmentWriter(folder, max([generation - 1, *segments]) + 1)

    def _load(self, number: int) -> None:
        rows = read_index(self.folder, number)
        while some := list(islice(rows, _ROWS_AT_ONCE)):
            by_ordinal = {row.ordinal: row for row in reversed(some)}
            self._note([by_ordinal[o] for o in self.absent(sorted(by_ordinal))], number)

    @property
    def new(self) -> int:
        return self.order.present.count

    @property
    def new_failed(self) -> int:
        return sum(self.failed.values())

    @property
    def end(self) -> int:
        """One more than the highest ordinal that has a line."""
        carried = self.carried.count()
        last = self.carried.rows(carried - 1, 1) if carried else []
        return max(self.order.end, last[0].ordinal + 1 if last else 0)

    def absent(self, ordinals: Iterable[int]) -> list[int]:
        """Those of `ordinals` for which this generation's job has no durable line, in their order."""
        return self.order.present.absent(ordinals)

    def __contains__(self, ordinal: int) -> bool:
        """Whether this generation's job has a durable line for `ordinal` (carried lines don't count)."""
        return ordinal in self.order.present

    def append(self, entries: Iterable[Entry]) -> int:
        """Make the lines durable that are not so yet; how many were new. Blocks on the disk.

        The first line of an ordinal stays, whatever comes later.
        """
        fresh: dict[int, Entry] = {}
        for entry in entries:
            fresh.setdefault(entry.ordinal, entry)
        ordinals = self.absent(sorted(fresh))
        if ordinals:
            self._note(self._writer.append([fresh[o] for o in ordinals]), self._writer.number)
        return len(ordinals)

    def _note(self, rows: Sequence[IndexRow], number: int) -> None:
        """Rows in ascending order of ordinal that are not known yet."""
        self.order.put([(ordinal, offset, length, number) for ordinal, _, _, offset, length, _ in rows])
        for _, _, _, _, length, code in rows:
            self.line_bytes += length
            if code:
                cls = CLASSES[code]
                self.failed[cls] = self.failed.get(cls, 0) + 1

    def close(self) -> None:
        """Close all files; may be called twice."""
        self._writer.close()
        self.order.close()
        self.carried.close()


class Walk:
    """A cursor over the lines of a ledger in the order of INPUT."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._row = 0
        self.ordinal = 0
        """The next line to give out."""

    def take(self, most: int = _ROWS_AT_ONCE, *, gaps: bool = False) -> list[Place]:
        """Up to `most` next lines, [] at the end; up to the first that is missing, unless `gaps` are passed over."""
        end = self._ledger.end if gaps else None
        while True:
            places = self._window(most)
            usable = places if gaps else _without_gap(places, self.ordinal)
            if usable:
                self.ordinal = usable[-1].ordinal + 1
            elif end is not None and self.ordinal < end:
                self.ordinal += most
                continue
            return usable

    @property
    def plain(self) -> bool:
        """No line is carried so far, so `spans` may be used."""
        return self._ledger.carried.count() == 0

    def spans(self, most: int = _ROWS_AT_ONCE) -> list[Span]:
        """As `take` without gaps, but lines that lie behind one another come as one."""
        order = self._ledger.order
        count = order.present.run(self.ordinal, most)
        found: list[Span] = []
        source = begin = end = -1
        for offset, length, segment in order.window(self.ordinal, count) if count else ():
            if offset != end or segment != source or end - begin >= SPAN_BYTES:
                if end > begin:
                    found.append(Span(source, begin, end - begin))
                source, begin = segment, offset
            end = offset + length
        if end > begin:
            found.append(Span(source, begin, end - begin))
        self.ordinal += count
        return found

    def _window(self, most: int) -> list[Place]:
        """All lines that are there with an ordinal in [ordinal, ordinal + most)."""
        first = self.ordinal
        own = [
            Place(ordinal, ordinal, 0, offset, length, segment)
            for ordinal, (offset, length, segment) in enumerate(self._ledger.order.window(first, most), first)
            if length
        ]
        return _merge(own, self._carried(first, first + most))

    def _carried(self, first: int, stop: int) -> list[Place]:
        """Carried rows with an ordinal in [first, stop); moves over those below `first`."""
        found: list[Place] = []
        row = self._row
        while rows := self._ledger.carried.rows(row):
            behind = sum(1 for r in rows if r.ordinal < first)
            self._row += behind
            found.extend(r for r in rows if first <= r.ordinal < stop)
            if rows[-1].ordinal >= stop:
                break
            row += len(rows)
        return found


def _merge(own: list[Place], carried: list[Place]) -> list[Place]:
    """Both in order; a line of our own job goes before a carried one for the same ordinal."""
    if not carried:
        return own
    merged: list[Place] = []
    for place in heapq.merge(own, carried, key=lambda p: p.ordinal):
        if not merged or merged[-1].ordinal != place.ordinal:
            merged.append(place)
    return merged


def _without_gap(places: list[Place], first: int) -> list[Place]:
    for at, place in enumerate(places):
        if place.ordinal != first + at:
            return places[:at]
    return places
