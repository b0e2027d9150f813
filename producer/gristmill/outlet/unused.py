"""``OUT.unused``: finished lines of earlier runs that no line of INPUT asks for any more.

They were paid for, so a changed INPUT or a `--limit` does not drop them; a later run finds them there again. Since a
run may take lines out of the old ``OUT.unused`` and add lines of the old OUT, no single rename changes both files:
first ``OUT.unused`` gets everything that either file may lose (`save`), then OUT is replaced, then ``OUT.unused`` gets
only what is left over (`settle`). A line that a crash leaves in both is known by its number and counts once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from gristmill.outlet.errors import disk
from gristmill.outlet.files import sync_folder, write_file
from gristmill.outlet.finished import Carried, unused_lines
from gristmill.outlet.reading import LineReader
from gristmill.outlet.rows import UNUSED, Place
from gristmill.outlet.workdir import Work, database_path


class Unused:
    """Writes down what is left over, in the work folder, when it is made; the feeder's process must have gone.

    Attributes:
        count: how many lines are left over.

    Raises (all methods):
        DiskError: a file cannot be read or written.
    """

    def __init__(self, work: Work) -> None:
        self._target = work.unused_path
        self._exact = work.folder / "unused.new"
        self._all = work.folder / "unused.all"
        self._active = database_path(work.folder).exists() and not work.overwrite
        self.count = 0
        if not self._active:
            return
        reader = LineReader(work)
        try:
            write_file(self._exact, self._counted(_lines(reader, unused_lines(work.folder))))
            added = (c for c in unused_lines(work.folder) if c.source != UNUSED)
            write_file(self._all, self._with_old(_lines(reader, added)))
        finally:
            reader.close()

    def _counted(self, lines: Iterator[bytes]) -> Iterator[bytes]:
        for line in lines:
            self.count += 1
            yield line

    def _with_old(self, added: Iterator[bytes]) -> Iterator[bytes]:
        with disk(self._target):
            if self._target.exists():
                with self._target.open("rb") as file:
                    yield from iter(lambda: file.read(1 << 20), b"")
        yield from added

    def save(self) -> None:
        """Keep everything that OUT or ``OUT.unused`` may lose; before OUT is replaced."""
        if self._active and self._all.stat().st_size:
            self._install(self._all)

    def settle(self) -> None:
        """Keep only what is left over; once OUT is durable."""
        if not self._active:
            return
        if self.count:
            self._install(self._exact)
        elif self._target.exists():
            with disk(self._target):
                self._target.unlink()
            sync_folder(self._target.parent)

    def _install(self, fresh: Path) -> None:
        with disk(self._target):
            fresh.replace(self._target)
        sync_folder(self._target.parent)


def _lines(reader: LineReader, carried: Iterable[Carried]) -> Iterator[bytes]:
    for c in carried:
        yield from reader.chunks([Place(c.written, c.written, c.number, c.offset, c.length, c.source)])
