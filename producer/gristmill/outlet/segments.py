"""Segments: finished lines on disk, and the journal that says which of them are durable.

A segment is two files that only grow. ``seg-000001.jsonl`` holds output lines in the order in which they finished.
``seg-000001.idx`` holds one row for each (`rows.IndexRow`), written after the lines have been fsynced and then fsynced
itself: it is the journal, and a line counts as durable once its row does. A crash between leaves lines without rows at
the end of the first file, or half a row at the end of the second; `recover` cuts both back to the last whole row. What
was cut was never acked, so the store still has it. Each session of a collector writes a segment of its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from gristmill.outlet.errors import disk
from gristmill.outlet.files import forget_pages, sync_data, sync_folder, write_all
from gristmill.outlet.rows import INDEX_BYTES, IndexRow, pack_index, unpack_index

_ROWS_AT_ONCE = 4096
KEPT_IN_MEMORY_BYTES = 32 << 20
"""The end of a segment stays in the system's cache, as it is soon copied to OUT; what lies before makes room."""


class Entry(NamedTuple):
    """One finished line on its way to the disk: `code` is 0 when ok, else `failure.CODES` of its class."""

    ordinal: int
    key: bytes
    number: int
    code: int
    line: bytes


def lines_path(folder: Path, number: int) -> Path:
    return folder / f"seg-{number:06d}.jsonl"


def index_path(folder: Path, number: int) -> Path:
    return folder / f"seg-{number:06d}.idx"


def read_index(folder: Path, number: int) -> Iterator[IndexRow]:
    """The rows of a segment, up to the first that is torn; nothing when it has no index.

    Raises:
        DiskError: the file cannot be read.
    """
    path = index_path(folder, number)
    with disk(path):
        if not path.exists():
            return
        with path.open("rb") as file:
            while data := file.read(INDEX_BYTES * _ROWS_AT_ONCE):
                count = 0
                for row in unpack_index(data):
                    count += 1
                    yield row
                if count * INDEX_BYTES < len(data):
                    return


def recover(folder: Path) -> list[int]:
    """Cut each segment back to what is durable, remove empty ones; the numbers of those that stay, in order.

    Raises:
        DiskError: a file cannot be read or cut.
    """
    kept = []
    for path in sorted(folder.glob("seg-*.jsonl")):
        number = int(path.stem.removeprefix("seg-"))
        if _cut_back(folder, number):
            kept.append(number)
        else:
            remove_segment(folder, number)
    return kept


def remove_segment(folder: Path, number: int) -> None:
    """Delete a segment; its lines go last, so that a crash between leaves what `recover` finds.

    Raises:
        DiskError: a file cannot be deleted.
    """
    for path in (index_path(folder, number), lines_path(folder, number)):
        with disk(path):
            path.unlink(missing_ok=True)


def _cut_back(folder: Path, number: int) -> int:
    """Cut one segment; the count of lines that stay. A row whose line is not there in full ends it too."""
    path, index = lines_path(folder, number), index_path(folder, number)
    with disk(path):
        size = path.stat().st_size
    rows = end = 0
    for row in read_index(folder, number):
        if row.offset != end or end + row.length > size:
            break
        rows, end = rows + 1, end + row.length
    _truncate(path, end)
    if index.exists():
        _truncate(index, rows * INDEX_BYTES)
    return rows


def _truncate(path: Path, size: int) -> None:
    with disk(path):
        if path.stat().st_size > size:
            os.truncate(path, size)


class SegmentWriter:
    """Appends to one new segment. Its files are made at the first append, so an idle session leaves none.

    After a DiskError it must not be used again: what the failed write left is cut by the next `recover`.
    """

    def __init__(self, folder: Path, number: int) -> None:
        self.number = number
        self._folder = folder
        self._lines = -1
        self._index = -1
        self._end = 0

    def append(self, entries: Sequence[Entry]) -> list[IndexRow]:
        """Make `entries` durable; their rows. Blocks on two fsyncs.

        Raises:
            DiskError: not durable, or not for certain.
        """
        if self._lines < 0:
            self._open()
        rows = []
        lines = []
        end = self._end
        for ordinal, key, number, code, line in entries:
            rows.append(IndexRow(ordinal, key, number, end, len(line), code))
            lines.append(line)
            end += len(line)
        with disk(lines_path(self._folder, self.number)):
            write_all(self._lines, b"".join(lines))
            sync_data(self._lines)
            forget_pages(self._lines, end - KEPT_IN_MEMORY_BYTES)
        with disk(index_path(self._folder, self.number)):
            write_all(self._index, b"".join([pack_index(row) for row in rows]))
            sync_data(self._index)
        self._end = end
        return rows

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        for name, path in (
            ("_lines", lines_path(self._folder, self.number)),
            ("_index", index_path(self._folder, self.number)),
        ):
            with disk(path):
                setattr(self, name, os.open(path, flags, 0o600))
        sync_folder(self._folder)

    def close(self) -> None:
        """Close the files; may be called twice."""
        for fd in (self._lines, self._index):
            if fd >= 0:
                os.close(fd)
        self._lines = self._index = -1
