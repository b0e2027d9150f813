"""The pictures that were used last, so that one that many lines share is read, hashed and encoded once.

Bounded by bytes and by number; what was not used longest goes first. Used by the loop and by the threads that read.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from gristmill.intake.options import EncodeOptions
from gristmill.intake.picture import Opened, Picture, hot_key
from gristmill.intake.picture_source import File

HOT_BYTES = 64 << 20
_PICTURE_BYTES = 4 << 20
"""Larger ones are not kept."""
_REFERENCE_WEIGHT_BYTES = 512
_FILES = 20_000


class HotPictures:
    """See the module's head."""

    def __init__(self, options: EncodeOptions) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._bytes = 0
        self._kept: OrderedDict[tuple[str, File | None], Picture] = OrderedDict()
        self._digests: OrderedDict[File, str] = OrderedDict()

    def known(self, file: File) -> Opened | None:
        """What will be sent of `file`, where that is known without reading it."""
        with self._lock:
            digest = self._digests.get(file)
            if digest is None:
                return None
            self._digests.move_to_end(file)
        picture = self.get(digest, file)
        return None if picture is None else Opened(digest, b"", file, picture)

    def remember(self, file: File, digest: str) -> None:
        """What the bytes of `file` are."""
        with self._lock:
            self._digests[file] = digest
            if len(self._digests) > _FILES:
                self._digests.popitem(last=False)

    def get(self, digest: str, file: File | None) -> Picture | None:
        """What will be sent of a source with these bytes."""
        key = hot_key(digest, file, self._options)
        with self._lock:
            picture = self._kept.get(key)
            if picture is not None:
                self._kept.move_to_end(key)
        return picture

    def put(self, digest: str, file: File | None, picture: Picture) -> None:
        """Keep what will be sent of a source."""
        key, weight = hot_key(digest, file, self._options), _weight(picture)
        if weight > _PICTURE_BYTES:
            return
        with self._lock:
            if key in self._kept:
                return
            self._kept[key] = picture
            self._bytes += weight
            while self._bytes > HOT_BYTES:
                self._bytes -= _weight(self._kept.popitem(last=False)[1])


def _weight(picture: Picture) -> int:
    return _REFERENCE_WEIGHT_BYTES + (len(picture.blob) if picture.blob is not None else 0)
