"""Reading lines in the order of INPUT from wherever they lie."""

from __future__ import annotations

import os
from collections.abc import Iterator

from gristmill.outlet.errors import disk
from gristmill.outlet.ledger import Walk
from gristmill.outlet.lines import renumber
from gristmill.outlet.rows import Place
from gristmill.outlet.workdir import Work

_SPAN_BYTES = 4 << 20
"""Neighbouring lines are read and written together up to this size."""


class LineReader:
    """Reads lines from the files that hold them; keeps those files open.

    Raises (all methods):
        DiskError: a file cannot be read, or is shorter than it was.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self._open: dict[int, int] = {}

    def chunks(self, places: list[Place]) -> Iterator[bytes]:
        """The lines of `places` in order; each chunk is some whole lines, every one with its newline."""
        at = 0
        while at < len(places):
            first = places[at]
            length, after = first.length, at + 1
            while after < len(places) and _joins(places[after], first, length):
                length += places[after].length
                after += 1
            chunk = self._read(first.source, first.offset, length)
            if not chunk.endswith(b"\n"):
                chunk += b"\n"  # the last line of a file that somebody ended without one
            yield chunk if first.written == first.ordinal else renumber(chunk, first.ordinal)
            at = after

    def _read(self, source: int, offset: int, length: int) -> bytes:
        path = self._work.source_path(source)
        with disk(path):
            fd = self._open.get(source, -1)
            if fd < 0:
                fd = self._open[source] = os.open(path, os.O_RDONLY)
            data = os.pread(fd, length, offset)
            if len(data) < length:
                raise OSError("the file has become shorter while it was in use")
        return data

    def close(self) -> None:
        for fd in self._open.values():
            os.close(fd)
        self._open.clear()


def _joins(place: Place, first: Place, length: int) -> bool:
    """Whether `place` lies right behind the `length` bytes that begin with `first`, and needs no other number."""
    return (
        place.source == first.source
        and place.offset == first.offset + length
        and place.written == place.ordinal
        and first.written == first.ordinal
        and length + place.length <= _SPAN_BYTES
    )


def ordered_lines(work: Work, *, gaps: bool = False) -> Iterator[bytes]:
    """All lines from the start of INPUT, in chunks of whole lines; up to the first that is missing unless `gaps`.

    Raises:
        DiskError: a file cannot be read.
    """
    walk, reader = Walk(work.ledger), LineReader(work)
    try:
        while places := walk.take(gaps=gaps):
            yield from reader.chunks(places)
    finally:
        reader.close()


class LineStream:
    """The lines for a stream (``-o -``), as far as they follow without a gap; call `ready` again for more."""

    def __init__(self, work: Work) -> None:
        self._walk, self._reader = Walk(work.ledger), LineReader(work)

    def ready(self, *, gaps: bool = False) -> Iterator[bytes]:
        """What can be given out now, in chunks of whole lines; `gaps` only at the end, to pass over what never ran."""
        while places := self._walk.take(gaps=gaps):
            yield from self._reader.chunks(places)

    @property
    def next_ordinal(self) -> int:
        """The line that is waited for."""
        return self._walk.ordinal

    def close(self) -> None:
        self._reader.close()
