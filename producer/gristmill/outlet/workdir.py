"""``OUT.gm/``: everything about one OUT that is not yet proved whole.

===================  ==============================================================================================
file                 what
===================  ==============================================================================================
lock                 held while a process writes this OUT
job.json             `Current`: which job the folder belongs to; replaced in one step when a new one begins
seg-N.jsonl, .idx    finished lines and their journal (`segments`), of this and of earlier generations
carried-N            lines that this generation takes from earlier ones (`carried`)
order                the order map of this generation (`order`); derived
finished.sqlite      index of the finished lines of earlier generations (`finished`); derived
===================  ==============================================================================================

A *generation* is a job's time in the folder and is named by the number of its first segment. Ordinals mean something
only inside one: a rerun is a new job over an INPUT that may have changed, so it begins a generation, and takes over
the earlier ones' lines by what they answer, not by where they stood.

OUT is either *grown* (it was absent, empty or to be overwritten: what it holds is a copy of lines in the folder) or the
*base* (it held our lines before the folder was made: it is a source of lines, and replaced only by a rename at the
end).

The order of calls of a run::

    with Work.open(out) as work:
        if work.previous: work.resume(); drain its job, remove it
        FinishedPlan.build(work); work.begin(job, ...); feed and collect; finish(work, ...); prove(...); work.remove()
"""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from gristmill.outlet.carried import carried_path
from gristmill.outlet.errors import OutRefusedError, disk
from gristmill.outlet.files import replace_file, sync_folder
from gristmill.outlet.ledger import Ledger
from gristmill.outlet.lines import NotOurLineError, parse_line
from gristmill.outlet.lock import OutLock
from gristmill.outlet.rows import BASE, UNUSED
from gristmill.outlet.segments import lines_path, recover, remove_segment

MAX_LINE_BYTES = 256 << 20
"""A longer line in an old OUT is not ours (a response is at most 64 MB)."""


class Current(msgspec.Struct, frozen=True, kw_only=True):
    """Which job the folder belongs to.

    Attributes:
        job: its id.
        epoch: the incarnation of that id.
        store: identity of the store that it lies in; holds no password.
        generation: number of its first segment.
        base: OUT holds finished lines from before and is replaced only at the end.
        repeated: a result was read that is durable already, so the store may have counted it otherwise (`doubt`).
    """

    job: str
    epoch: str = ""
    store: str = ""
    generation: int = 1
    base: bool = False
    repeated: bool = False


class Work:
    """The work folder of one OUT, locked; use `open`.

    Attributes:
        out: OUT, links resolved; None when the lines go to a stream.
        folder: the work folder.
        previous: what the folder belonged to when it was opened; None in a new one.
        base: OUT is a source of finished lines.
        segments: numbers of the segments that hold something.
        overwrite: lines of earlier runs count for nothing.
        planned: `FinishedPlan.build` has been called since it was opened.
        failed_before: how many failed lines that found; their requests are sent again.
        holds_more: the folder has finished lines that OUT has not; `assemble.finish` sets it.
    """

    def __init__(self, out: Path | None, folder: Path, lock: OutLock, *, overwrite: bool) -> None:
        self.out = out
        self.folder = folder
        self._lock = lock
        self._ledger: Ledger | None = None
        self.overwrite = overwrite
        self.planned = False
        self.failed_before = 0
        self.holds_more = False
        self.segments = recover(folder)
        self.previous = _read_current(folder / "job.json")
        self.current = self.previous
        self.base = self._is_base()

    @classmethod
    def open(cls, out: Path | None, *, folder: Path | None = None, overwrite: bool = False) -> Self:
        """Lock the work folder of `out` (made when absent) and cut what a crash left half written.

        `folder` is for lines that go to a stream (`out` None); else it is ``OUT.gm`` beside OUT. With `overwrite`,
        finished lines in OUT and in the folder count for nothing once `begin` is called; until then nothing is touched.

        Raises:
            OutRefusedError: OUT is not a regular file, or holds something that we did not write.
            WorkBusyError: another process writes this OUT.
            DiskError: the folder cannot be made, read or written.
        """
        out = None if out is None else Path(os.path.realpath(out))
        folder = folder or work_folder(out)
        if out is not None:
            _check_kind(out)
            if not overwrite and not (folder / "job.json").exists():
                _check_ours(out)
        with disk(folder):
            folder.mkdir(mode=0o700, exist_ok=True)
        lock = OutLock(folder / "lock", out or folder)
        try:
            return cls(out, folder, lock, overwrite=overwrite)
        except BaseException:
            lock.release()
            raise

    def _is_base(self) -> bool:
        if self.out is None or self.overwrite:
            return False
        if self.previous is not None:
            return self.previous.base
        return self.out.exists() and self.out.stat().st_size > 0

    def begin(self, job: str, *, epoch: str = "", store: str = "") -> None:
        """Start a generation for `job`; lines of earlier ones are met only through the plan from now on.

        Raises:
            DiskError: the folder cannot be written; then the old generation still stands.
        """
        self._refresh()
        generation = max(self.segments, default=0) + 1
        if self.overwrite:
            self._discard_lines()
        if not self.planned:
            remove_database(self.folder)
        current = Current(job=job, epoch=epoch, store=store, generation=generation, base=self.base)
        carried_path(self.folder, generation).unlink(missing_ok=True)  # of a begin that was cut short
        self._become(current)
        self.resume()

    def _become(self, current: Current) -> None:
        replace_file(self.folder / "job.json", msgspec.json.encode(current))
        self.current = current

    def doubt(self) -> None:
        """Remember, for later processes too, that a result came twice: the store may have counted the other one.

        Raises:
            DiskError: the folder cannot be written.
        """
        assert self.current is not None, "call begin or resume first"
        if not self.current.repeated:
            self._become(msgspec.structs.replace(self.current, repeated=True))

    def resume(self) -> None:
        """Open the generation that the folder belongs to, for draining its job or going on with it.

        Raises:
            DiskError: a file cannot be read or written.
        """
        assert self.current is not None, "resume needs a folder with a job: call begin"
        self._refresh()
        self._lock.describe(self.current.job)
        self._ledger = Ledger(self.folder, self.current.generation, self.segments)

    @property
    def ledger(self) -> Ledger:
        """The durable set of the current generation; after `begin` or `resume`."""
        assert self._ledger is not None, "call begin or resume first"
        return self._ledger

    def source_path(self, source: int) -> Path:
        """The file that holds the lines of `source` (see `rows`)."""
        if source == BASE:
            assert self.out is not None, "a stream is no source of lines"
            return self.out
        if source == UNUSED:
            return self.unused_path
        return lines_path(self.folder, source)

    @property
    def unused_path(self) -> Path:
        """``OUT.unused``: finished lines whose requests are no longer in INPUT; kept, since they were paid for."""
        place = self.out or self.folder
        return place.with_name(place.name + ".unused")

    def _discard_lines(self) -> None:
        for number in self.segments:
            remove_segment(self.folder, number)
        self.segments = []

    @property
    def adopted(self) -> bool:
        """Carried lines are of this very job (`adopt`), not of an earlier one."""
        return not database_path(self.folder).exists()

    def earlier_sources(self) -> list[int]:
        """Where lines of earlier generations lie, while no new one has begun: OUT, ``OUT.unused``, all segments."""
        if self.overwrite:
            return []
        self._refresh()
        kept = [UNUSED] if self.unused_path.exists() else []
        return [*([BASE] if self.base else []), *kept, *self.segments]

    def _refresh(self) -> None:
        """See what earlier sessions and our own have written; closes the ledger."""
        self.close_ledger()
        self.segments = recover(self.folder)

    def close_ledger(self) -> None:
        """Close the ledger's files; may be called twice."""
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None

    def remove(self) -> bool:
        """Close the work and delete the folder, unless it `holds_more` than OUT; whether it was deleted."""
        self.close_ledger()
        if self.holds_more:
            self.close()
            return False
        with disk(self.folder):
            # job.json goes first: what a crash leaves behind then says nothing any more about OUT
            (self.folder / "job.json").unlink(missing_ok=True)
            shutil.rmtree(self.folder)
        sync_folder(self.folder.parent)
        self.close()
        return True

    def close(self) -> None:
        """Close the files and let the lock go; the folder stays. May be called twice."""
        self.close_ledger()
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def database_path(folder: Path) -> Path:
    """Where the index of finished lines lies."""
    return folder / "finished.sqlite"


def remove_database(folder: Path) -> None:
    """Delete the index of finished lines and what SQLite keeps beside it."""
    path = database_path(folder)
    with disk(path):
        for name in ("", "-wal", "-shm", "-journal"):
            path.with_name(path.name + name).unlink(missing_ok=True)


def work_folder(out: Path | None) -> Path:
    """``OUT.gm`` beside the file that OUT is (links resolved)."""
    if out is None:
        raise ValueError("a stream has no place of its own: give a folder")
    out = Path(os.path.realpath(out))
    return out.with_name(out.name + ".gm")


def read_current(out: Path) -> Current | None:
    """Which job the work folder of `out` belongs to, without its lock; None when there is none."""
    return _read_current(work_folder(out) / "job.json")


def _read_current(path: Path) -> Current | None:
    with disk(path):
        if not path.exists():
            return None
        data = path.read_bytes()
    try:
        return msgspec.json.decode(data, type=Current)
    except msgspec.MsgspecError as error:
        raise OutRefusedError(
            path, f"{path}: damaged ({error}); move the folder {path.parent} away and run again"
        ) from error


def _check_kind(out: Path) -> None:
    with disk(out):
        if out.exists() and not stat.S_ISREG(out.stat().st_mode):
            raise OutRefusedError(out, f"{out} is not a regular file; name a file, or `-o -` for standard output")


def _check_ours(out: Path) -> None:
    """Refuse an OUT whose first line is not ours; the rest is read when the plan is built."""
    with disk(out):
        if not out.exists() or out.stat().st_size == 0:
            return
        with out.open("rb") as file:
            first = file.readline(MAX_LINE_BYTES)
    try:
        parse_line(first)
    except NotOurLineError:
        raise foreign_line(out, 1) from None


def foreign_line(out: Path, line: int) -> OutRefusedError:
    """What to raise for a line of OUT that we did not write."""
    return OutRefusedError(
        out,
        f"{out}, line {line}: not written by producer, so it is left untouched; "
        "name another file, or say `--overwrite`",
    )
