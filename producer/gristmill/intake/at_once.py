"""The short way of pictures that need nothing: read, judged and hashed in one go, by the thread that reads the lines.

Most pictures are fit to send as they are and lie in the system's cache. For them, what takes longest is not their bytes
but the trips between threads and tasks; here a picture takes five system calls, one hash and one look at its structure.
A picture is read only if the kernel can give it without waiting (Linux: RWF_NOWAIT), for a disk or another host must
not hold up the lines behind. Whatever is not found fit at once, for any reason, goes the long way
(`gristmill.intake.pictures`), which finds the reason again and says it.

Where pictures do not lie in the cache, most tries would be in vain; after each one that was, more are left out.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from gristmill.contract.digest import digest_of
from gristmill.intake import picture_source as source
from gristmill.intake import structure
from gristmill.intake.draft import PictureRef
from gristmill.intake.errors import PictureError
from gristmill.intake.hot import HotPictures
from gristmill.intake.options import EncodeOptions
from gristmill.intake.picture import Opened, by_reference, in_the_run, is_fit
from gristmill.intake.picture_source import File
from gristmill.paths import opened_path

MOST_BYTES = 4 << 20
"""Larger pictures are shared out among threads."""
_MOST_LEFT_OUT = 64
_NOWAIT: int | None = getattr(os, "RWF_NOWAIT", None)
_OPENING = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
"""Without O_NONBLOCK a pipe in place of a picture would hold us up."""


class AtOnce:
    """For one thread. `read_bytes` counts what it has read from files."""

    def __init__(self, options: EncodeOptions, root: str, hot: HotPictures) -> None:
        self._options = options
        self._root = root
        self._hot = hot
        self._buffer = bytearray()
        self._left_out = self._to_leave_out = 0
        self.read_bytes = 0

    def __call__(self, refs: Sequence[PictureRef]) -> list[Opened] | None:
        """All of `refs`, each with its `picture`; None when one of them has to go the long way."""
        found: list[Opened] = []
        for ref in refs:
            try:
                one = self._data_url(ref) if source.is_data_url(ref) else self._file(ref)
            except (PictureError, OSError, UnicodeEncodeError):
                return None
            if one is None:
                return None
            found.append(one)
        return found

    def _data_url(self, ref: PictureRef) -> Opened | None:
        """One that travels in the store; by reference it has to be written first."""
        return self._judged(source.data_of(ref), None) if self._options.inline else None

    def _file(self, ref: PictureRef) -> Opened | None:
        if _NOWAIT is None:
            return None
        path = source.resolve(ref, self._root)
        if self._options.roots is not None:
            path = source.confine(path, self._options.roots)
        if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 - to open a device can do something; a Path costs more
            return None
        fd = os.open(path, _OPENING)
        try:
            file = self._allowed(fd)
            if file is None:
                return None
            known = self._hot.known(file)
            if known is not None:
                return known
            data = self._read(fd, file)
        finally:
            os.close(fd)
        return None if data is None else self._judged(data, file)

    def _allowed(self, fd: int) -> File | None:
        """The open file by where it really lies, when it is a regular one of middling size beneath the roots."""
        status = os.fstat(fd)
        if not (stat.S_ISREG(status.st_mode) and 0 < status.st_size <= MOST_BYTES and status.st_nlink):
            return None
        path = opened_path(fd)
        path.encode()  # a name that is no UTF-8 can't stand in a frame
        roots = self._options.roots
        if roots is not None and not any(path.startswith(f"{root.rstrip('/')}/") for root in roots):
            return None
        return File.of(path, status)

    def _read(self, fd: int, file: File) -> memoryview | None:
        """The bytes of a file that did not change meanwhile; None when it did, or has to be waited for.

        They are good until the next call.
        """
        if self._left_out < self._to_leave_out:
            self._left_out += 1
            return None
        target = self._room(file.size + 1)
        try:
            got = os.preadv(fd, [target], 0, _NOWAIT or 0)
        except OSError:
            got = -1
        if got != file.size or File.of(file.path, os.fstat(fd)) != file:
            self._left_out, self._to_leave_out = 0, min(2 * self._to_leave_out + 1, _MOST_LEFT_OUT)
            return None
        self._to_leave_out = 0
        self.read_bytes += got
        return target[:got]

    def _room(self, size: int) -> memoryview:
        if len(self._buffer) < size:
            self._buffer = bytearray(max(size, 1 << 20))
        return memoryview(self._buffer)[:size]

    def _judged(self, data: bytes | memoryview, file: File | None) -> Opened | None:
        """A source as it is sent; None when it is not fit as it is."""
        image = self._options.image
        seen = structure.look(data, allow_truncated=image.allow_truncated)
        if not is_fit(seen, len(data), image):
            return None
        digest = digest_of(data)
        picture = self._hot.get(digest, file)
        if picture is None:
            if file is not None and not self._options.inline:
                picture = by_reference(digest, file, seen.mime, seen.width, seen.height)
            else:
                picture = in_the_run(digest, bytes(data), seen.mime, seen.width, seen.height)
            self._hot.put(digest, file, picture)
        if file is not None:
            self._hot.remember(file, digest)
        return Opened(digest, b"", file, picture)
