"""Which finished lines of earlier runs are still good: the feeder's plan for a rerun.

`FinishedPlan.build` streams once over all earlier sources (OUT, ``OUT.unused``, segments) into an SQLite file in the
work folder, so memory stays flat. Only lines of status ok count. A line is found again by what it answers
(`lines.request_key`: custom_id and fingerprint), and each is given out once: the k-th request of a key gets its k-th
line, however INPUT was reordered. A result that lies in two files (a crash between two renames) is known by its number
and counts once.

The feeder's process then asks `take` and notes what it takes over with `carry`. What is taken is told by the
carried file alone; the column `used` repeats it, and `rewind` puts it right, so SQLite need not be durable.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from gristmill.outlet.carried import CarriedReader, CarriedWriter, carried_path
from gristmill.outlet.errors import DiskError, disk
from gristmill.outlet.lines import NotOurLineError, number_of_id, parse_line, request_key
from gristmill.outlet.rows import BASE, UNUSED, Place
from gristmill.outlet.segments import read_index
from gristmill.outlet.workdir import MAX_LINE_BYTES, Current, database_path, foreign_line, remove_database

if TYPE_CHECKING:
    from gristmill.outlet.workdir import Work

_SCHEMA = """
CREATE TABLE finished (number INTEGER PRIMARY KEY, key BLOB NOT NULL, seq INTEGER NOT NULL, written INTEGER NOT NULL,
                       offset INTEGER NOT NULL, length INTEGER NOT NULL, source INTEGER NOT NULL,
                       used INTEGER NOT NULL DEFAULT 0)
"""
_UNUSED = "SELECT number, written, offset, length, source FROM finished WHERE used = 0 ORDER BY seq"
_NEXT = "SELECT number, written, offset, length, source FROM finished WHERE key = ? AND used = 0 ORDER BY seq LIMIT 1"


class Carried(NamedTuple):
    """A finished line that a request may take over; opaque to the feeder."""

    number: int
    written: int
    offset: int
    length: int
    source: int


class PlanStats(msgspec.Struct, frozen=True):
    """What earlier runs left: `ok` lines that may be carried, `failed` lines whose requests are sent again."""

    ok: int = 0
    failed: int = 0


class _Row(NamedTuple):
    """One ok line on its way into the table."""

    number: int
    key: bytes
    written: int
    offset: int
    length: int
    source: int


class FinishedPlan:
    """The plan over the work folder `folder`, in the feeder's process; `rewind` comes first, also with 0.

    Raises (all methods):
        DiskError: a file cannot be read or written.
    """

    def __init__(self, folder: Path) -> None:
        current = msgspec.json.decode((folder / "job.json").read_bytes(), type=Current)
        self._path = database_path(folder)
        self._rows = CarriedWriter(carried_path(folder, current.generation))
        self._log = CarriedReader(carried_path(folder, current.generation))
        with _sqlite(self._path):
            self._db = _connect(self._path, journal="WAL")

    @staticmethod
    def build(work: Work) -> PlanStats:
        """Index what earlier generations finished; call it before `Work.begin`.

        Raises:
            OutRefusedError: OUT holds a complete line that we did not write.
            DiskError: a file cannot be read, or the index not written.
        """
        sources = work.earlier_sources()
        path = database_path(work.folder)
        remove_database(work.folder)
        work.planned = True
        # no journal: an index that a crash left half built is built anew, since no generation has begun yet
        with _sqlite(path), closing(_connect(path, journal="OFF")) as db:
            stats = _fill(db, _earlier_rows(work, sources))
        work.failed_before = stats.failed
        return stats

    def rewind(self, count: int) -> None:
        """Forget all but the first `count` carried lines: the rest is not covered by the feeder's cursor."""
        self._rows.rewind(count)
        with _sqlite(self._path), self._db as db:
            db.execute("UPDATE finished SET used = 0 WHERE used = 1")
            row = 0
            while rows := self._log.rows(row):
                db.executemany("UPDATE finished SET used = 1 WHERE number = ?", [(r.number,) for r in rows])
                row += len(rows)

    def take(self, custom_id: str | None, fingerprint: bytes) -> Carried | None:
        """The next finished line for this request, marked as taken; None when it must be sent."""
        with _sqlite(self._path):
            found = self._db.execute(_NEXT, (request_key(custom_id, fingerprint),)).fetchone()
            if found is None:
                return None
            self._db.execute("UPDATE finished SET used = 1 WHERE number = ?", (found[0],))
        return Carried._make(found)

    def carry(self, ordinal: int, carried: Carried) -> None:
        """Note that `ordinal` (higher than all before) has its line in `carried`."""
        self._rows.add(Place(ordinal, carried.written, carried.number, carried.offset, carried.length, carried.source))

    def flush(self) -> None:
        """Make all carried rows durable; call it before a cursor that covers them is stored."""
        self._rows.flush()
        with _sqlite(self._path):
            self._db.commit()

    def close(self) -> None:
        """Write what is left and close."""
        self._rows.close()
        self._log.close()
        self._db.commit()
        self._db.close()


def open_plan(folder: str) -> FinishedPlan:
    """The plan over the work folder `folder`; by this name the feeder's process finds it."""
    return FinishedPlan(Path(folder))


def unused_lines(folder: Path) -> Iterator[Carried]:
    """The finished lines that nobody took; for the end of a run, when the feeder's process has gone."""
    path = database_path(folder)
    if not path.exists():
        return
    with _sqlite(path), closing(_connect(path, journal="WAL")) as db:
        for row in db.execute(_UNUSED):
            yield Carried._make(row)


def _earlier_rows(work: Work, sources: list[int]) -> Iterator[_Row | None]:
    for source in sources:
        if source in (BASE, UNUSED):
            yield from _file_rows(work.source_path(source), source)
            continue
        for row in read_index(work.folder, source):
            yield None if row.code else _Row(row.number, row.key, row.ordinal, row.offset, row.length, source)


def _file_rows(path: Path, source: int) -> Iterator[_Row | None]:
    """The lines of one of our files; blank ones and a torn last one are passed over."""
    offset = 0
    with disk(path), path.open("rb") as file:
        for count, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES), b""), start=1):
            start, offset = offset, offset + len(line)
            if not line.strip():
                continue
            try:
                parsed = parse_line(line)
            except NotOurLineError:
                if not line.endswith(b"\n") and len(line) < MAX_LINE_BYTES:
                    return
                raise foreign_line(path, count) from None
            if not parsed.ok:
                yield None
                continue
            yield _Row(number_of_id(parsed.id), parsed.key, parsed.gristmill.index, start, len(line), source)


def _fill(db: sqlite3.Connection, rows: Iterable[_Row | None]) -> PlanStats:
    failed = 0

    def ok_rows() -> Iterator[_Row]:
        nonlocal failed
        for row in rows:
            if row is None:
                failed += 1
            else:
                yield row

    numbered = ((row.number, row.key, seq, *row[2:]) for seq, row in enumerate(ok_rows()))
    with db:
        db.execute(_SCHEMA)
        db.executemany("INSERT OR IGNORE INTO finished VALUES (?, ?, ?, ?, ?, ?, ?, 0)", numbered)
        db.execute("CREATE INDEX by_key ON finished (key, seq)")
        ok = db.execute("SELECT count(*) FROM finished").fetchone()[0]
    return PlanStats(ok, failed)


def _connect(path: Path, *, journal: str) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=30)
    db.execute(f"PRAGMA journal_mode = {journal}")
    db.execute("PRAGMA synchronous = OFF")
    db.execute("PRAGMA cache_size = -65536")
    return db


@contextmanager
def _sqlite(path: Path) -> Iterator[None]:
    """Let an error of SQLite out as a `DiskError`: a full disk shows as "database or disk is full"."""
    try:
        yield
    except sqlite3.Error as error:
        raise DiskError(path, OSError(str(error))) from error
