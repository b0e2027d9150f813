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
from enum import StrEnum

import msgspec

from gristmill.outlet.errors import disk
from gristmill.outlet.files import pwrite_all, sync_folder, write_file
from gristmill.outlet.finished import unused_lines
from gristmill.outlet.reading import LineStream, ordered_lines
from gristmill.outlet.rows import BASE
from gristmill.outlet.unused import Unused
from gristmill.outlet.workdir import Work, database_path

__all__ = ["Assembled", "Grower", "LineStream", "Outcome", "finish", "ordered_lines"]


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
    """The old OUT has lines that would be dropped without another in their place; the work folder has the new ones."""


class Assembled(msgspec.Struct, frozen=True):
    """Attributes: `unused` finished lines that no line of INPUT asks for any more; they are in ``OUT.unused``."""

    outcome: Outcome
    unused: int = 0


def finish(work: Work, *, fed: bool, complete: bool = True, grower: Grower | None = None) -> Assembled:
    """Bring OUT to its final state for now and make it durable; blocks on the disk.

    Lines that never ran are passed over. `fed` says that the feeder has come to the end of INPUT, so that every line
    of earlier runs has been asked for; without it nothing of theirs is dropped: an old OUT stays, and so does the
    folder. They stay as well when the job is not `complete` and the old OUT has failed lines, for which there may be
    no other result.

    Raises:
        DiskError: OUT or the folder cannot be written; the old OUT stands.
    """
    if work.base and not (fed and compared_with_old(work) and (complete or not work.failed_before)):
        work.holds_more = True
        return Assembled(Outcome.KEPT)
    unused = Unused(work) if fed else None
    if work.base:
        _replace(work, unused)
    else:
        _finish_grown(work, grower)
    if unused is not None:
        unused.settle()
    else:
        work.holds_more = next(unused_lines(work.folder), None) is not None
    return Assembled(Outcome.REPLACED if work.base else Outcome.GROWN, unused.count if unused else 0)


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


def _replace(work: Work, unused: Unused | None) -> None:
    out = work.source_path(BASE)
    fresh = work.folder / "out.new"
    write_file(fresh, ordered_lines(work, gaps=True))
    if unused is not None:
        unused.save()
    with disk(out):
        shutil.copymode(out, fresh)
        fresh.replace(out)
    sync_folder(out.parent)
