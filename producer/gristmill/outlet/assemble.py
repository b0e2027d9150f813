"""From the ledger to OUT: lines in the order of INPUT.

Fresh run: `Grower` appends to OUT whatever follows without a gap, so one straggler holds back OUT but nothing else.
OUT is a copy, so it needs no fsync until the end; after a restart the grower compares what is there with what it would
write and goes on where they part, so a torn line, a foreign end or a changed INPUT mend themselves.

Over an old OUT: `finish` writes the whole file into the work folder, fsyncs it, renames it over OUT and fsyncs the
folder.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

import msgspec

from gristmill.outlet.errors import disk
from gristmill.outlet.files import pwrite_all, sync_folder, write_all
from gristmill.outlet.finished import unused_lines
from gristmill.outlet.ledger import Walk
from gristmill.outlet.lines import renumber
from gristmill.outlet.rows import Place
from gristmill.outlet.workdir import Work, database_path

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


class Grower:
    """Lets OUT grow behind the ledger; only where OUT is not the base.

    Raises (all methods):
        DiskError: OUT cannot be made, read or written.
    """

    def __init__(self, work: Work) -> None:
        assert work.out is not None, "only a file grows"
        assert not work.base, "an old OUT is replaced, not written into"
        self._out = work.out
        self._stream = LineStream(work)
        self._end = 0
        with disk(self._out):
            created = not self._out.exists()
            self._fd = os.open(self._out, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            self._comparing = os.fstat(self._fd).st_size > 0
        if created:
            sync_folder(self._out.parent)

    @property
    def next_ordinal(self) -> int:
        """The line that OUT waits for."""
        return self._stream.next_ordinal

    def step(self, *, gaps: bool = False) -> int:
        """Append what is ready; how many bytes."""
        before = self._end
        for chunk in self._stream.ready(gaps=gaps):
            with disk(self._out):
                if not self._comparing or not self._equal(chunk):
                    pwrite_all(self._fd, chunk, self._end)
            self._end += len(chunk)
        return self._end - before

    def _equal(self, chunk: bytes) -> bool:
        """Whether OUT already has `chunk` here; where it differs, it is cut and no longer compared."""
        if os.pread(self._fd, len(chunk), self._end) == chunk:
            return True
        os.ftruncate(self._fd, self._end)
        self._comparing = False
        return False

    def finish(self) -> None:
        """Cut what lies behind the last line, and make OUT durable."""
        with disk(self._out):
            os.ftruncate(self._fd, self._end)
            os.fsync(self._fd)

    def close(self) -> None:
        """May be called twice."""
        self._stream.close()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Outcome(StrEnum):
    """What `finish` made of OUT."""

    GROWN = "grown"
    REPLACED = "replaced"
    KEPT = "kept"
    """Not all of INPUT was compared with the old OUT, so that one stands; the work folder has the rest."""


class Assembled(msgspec.Struct, frozen=True):
    """Attributes: `unused` finished lines that no line of INPUT asks for any more; they are in ``OUT.unused``."""

    outcome: Outcome
    unused: int = 0


def finish(work: Work, *, fed: bool, grower: Grower | None = None) -> Assembled:
    """Bring OUT to its final state for now and make it durable; blocks on the disk.

    Lines that never ran are passed over. `fed` says that the feeder has come to the end of INPUT, so that every line
    of earlier runs has been asked for; without it nothing of theirs is dropped: an old OUT stays, and so does the
    folder.

    Raises:
        DiskError: OUT or the folder cannot be written; the old OUT stands.
    """
    unused = _save_unused(work) if fed else 0
    if not work.base:
        _finish_grown(work, grower)
        return Assembled(Outcome.GROWN, unused)
    if not fed or not compared_with_old(work):
        return Assembled(Outcome.KEPT)
    _replace(work)
    return Assembled(Outcome.REPLACED, unused)


def compared_with_old(work: Work) -> bool:
    """Whether a plan or `adopt` has looked at the old OUT: without that, replacing it would drop its lines."""
    return database_path(work.folder).exists() or work.ledger.carried.count() > 0


def _finish_grown(work: Work, grower: Grower | None) -> None:
    own = grower or Grower(work)
    try:
        own.step(gaps=True)
        own.finish()
    finally:
        if grower is None:
            own.close()


def _replace(work: Work) -> None:
    out = work.source_path(0)
    fresh = work.folder / "out.new"
    _write_file(fresh, ordered_lines(work, gaps=True))
    with disk(out):
        shutil.copymode(out, fresh)
        fresh.replace(out)
    sync_folder(out.parent)


def _write_file(path: Path, chunks: Iterator[bytes]) -> None:
    with disk(path):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            for chunk in chunks:
                write_all(fd, chunk)
            os.fsync(fd)
        finally:
            os.close(fd)


def _save_unused(work: Work) -> int:
    """Rewrite ``OUT.unused``; it goes when there is nothing left for it. The count of its lines."""
    if work.overwrite or not database_path(work.folder).exists():
        return 0
    target = work.unused_path
    fresh = work.folder / "unused.new"
    reader = LineReader(work)
    count = 0

    def chunks() -> Iterator[bytes]:
        nonlocal count
        for c in unused_lines(work.folder):
            count += 1
            yield from reader.chunks([Place(c.written, c.written, c.number, c.offset, c.length, c.source)])

    try:
        _write_file(fresh, chunks())
    finally:
        reader.close()
    with disk(target):
        if count:
            fresh.replace(target)
        elif target.exists():
            target.unlink()
    sync_folder(target.parent)
    return count
