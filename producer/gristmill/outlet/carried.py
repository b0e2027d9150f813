"""The carried file: which lines of INPUT need not be sent, since a line of an earlier run is still good.

Only the feeder's process writes it, in the order of INPUT, so its rows ascend by ordinal; the collector's process
follows it. A row that is not yet covered by the feeder's cursor may be cut and written again (`rewind`), with the same
content, since the same input meets the same finished lines in the same order.
"""

from __future__ import annotations

import os
from pathlib import Path

from gristmill.outlet.errors import DiskError, disk
from gristmill.outlet.files import sync_data, write_all
from gristmill.outlet.rows import CARRIED, Place

_ROWS_AT_ONCE = 1024


def carried_path(folder: Path, generation: int) -> Path:
    return folder / f"carried-{generation:06d}"


class CarriedWriter:
    """Appends rows; call `rewind` first.

    Raises (all methods):
        DiskError: the file cannot be made, cut or written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: list[bytes] = []
        with disk(path):
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)

    def rewind(self, count: int) -> None:
        """Keep the first `count` rows and forget the rest."""
        self._rows.clear()
        with disk(self._path):
            if os.fstat(self._fd).st_size < count * CARRIED.size:
                raise DiskError(self._path, OSError(f"it should hold {count} rows and is shorter"))
            os.ftruncate(self._fd, count * CARRIED.size)

    def add(self, place: Place) -> None:
        self._rows.append(CARRIED.pack(*place))
        if len(self._rows) >= _ROWS_AT_ONCE:
            self._write()

    def flush(self) -> None:
        """Make all rows durable."""
        self._write()
        with disk(self._path):
            sync_data(self._fd)

    def _write(self) -> None:
        rows, self._rows = self._rows, []
        with disk(self._path):
            write_all(self._fd, b"".join(rows))

    def close(self) -> None:
        """Write what is left, without an fsync."""
        self._write()
        os.close(self._fd)


class CarriedReader:
    """Reads the file while another process appends to it; a file that is not there yet is empty.

    Raises (all methods):
        DiskError: it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1

    def count(self) -> int:
        """Whole rows in the file."""
        with disk(self._path):
            return os.fstat(self._fd).st_size // CARRIED.size if self._opened() else 0

    def rows(self, first: int, most: int = _ROWS_AT_ONCE) -> list[Place]:
        """Up to `most` rows from number `first`."""
        with disk(self._path):
            if not self._opened():
                return []
            data = os.pread(self._fd, most * CARRIED.size, first * CARRIED.size)
        return [Place._make(r) for r in CARRIED.iter_unpack(data[: len(data) - len(data) % CARRIED.size])]

    def _opened(self) -> bool:
        if self._fd < 0 and self._path.exists():
            self._fd = os.open(self._path, os.O_RDONLY)
        return self._fd >= 0

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
