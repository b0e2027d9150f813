"""Small file work that must survive a power cut: fsync of files and folders, whole-file replacement, whole writes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from gristmill.outlet.errors import disk


def sync_data(fd: int) -> None:
    """Flush a file's bytes (and its length) to the disk."""
    # macOS has no fdatasync
    getattr(os, "fdatasync", os.fsync)(fd)


def forget_pages(fd: int, end: int) -> None:
    """Let the system drop what it caches of the first `end` bytes, which lie on the disk: its memory has better use."""
    if end > 0 and hasattr(os, "posix_fadvise"):  # not on macOS
        os.posix_fadvise(fd, 0, end, os.POSIX_FADV_DONTNEED)


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable: creations, renames, removals."""
    with disk(folder):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def write_all(fd: int, data: bytes) -> None:
    """Write all of `data` at the end of `fd`: a full disk may take a part before it refuses.

    Raises:
        OSError: as from write(2).
    """
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def pwrite_all(fd: int, data: bytes, offset: int) -> None:
    """`write_all` at `offset`."""
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written


def write_file(path: Path, chunks: Iterable[bytes]) -> None:
    """Make a private file of `chunks`, whole and durable.

    Raises:
        DiskError: it could not be written.
    """
    with disk(path):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            for chunk in chunks:
                write_all(fd, chunk)
            os.fsync(fd)
        finally:
            os.close(fd)


def replace_file(path: Path, data: bytes) -> None:
    """Put `data` into `path` so that a reader and a power cut see the old content or the new, nothing between."""
    fresh = path.with_name(path.name + ".new")
    write_file(fresh, [data])
    with disk(path):
        fresh.replace(path)
    sync_folder(path.parent)
