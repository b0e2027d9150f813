"""Reading lines in the order of INPUT from wherever they lie."""

from __future__ import annotations

import os
from collections.abc import Iterator

from gristmill.outlet.errors import disk
from gristmill.outlet.ledger import SPAN_BYTES, Walk
from gristmill.outlet.lines import renumber
from gristmill.outlet.rows import Place, Span
from gristmill.outlet.workdir import Work


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

    def spans(self, spans: list[Span]) -> Iterator[bytes]:
        """The lines of `spans`, which are our own and need no other number; each chunk is one span."""
        for source, offset, length in spans:
            yield self._read(source, offset, length)

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
        and length + place.length <= SPAN_BYTES
    )


def _chunks(walk: Walk, reader: LineReader, *, gaps: bool) -> Iterator[bytes]:
    """Chunks of whole lines from where `walk` stands, as far as they are there."""
    while True:
        if walk.plain and (spans := walk.spans()):
            yield from reader.spans(spans)
        elif places := walk.take(gaps=gaps) if gaps or not walk.plain else []:
            yield from reader.chunks(places)
        else:
            return


def ordered_lines(work: Work, *, gaps: bool = False) -> Iterator[bytes]:
    """All lines from the start of INPUT, in chunks of whole lines; up to the first that is missing unless `gaps`.

    Raises:
        DiskError: a file cannot be read.
    """
    walk, reader = Walk(work.ledger), LineReader(work)
    try:
        yield from _chunks(walk, reader, gaps=gaps)
    finally:
        reader.close()


class LineStream:
    """The lines for a stream (``-o -``), as far as they follow without a gap; call `ready` again for more."""

    def __init__(self, work: Work) -> None:
        self._walk, self._reader = Walk(work.ledger), LineReader(work)

    def ready(self, *, gaps: bool = False) -> Iterator[bytes]:
        """What can be given out now, in chunks of whole lines; `gaps` only at the end, to pass over what never ran."""
        return _chunks(self._walk, self._reader, gaps=gaps)

    @property
    def next_ordinal(self) -> int:
        """The line that is waited for."""
        return self._walk.ordinal

    def close(self) -> None:
        self._reader.close()
