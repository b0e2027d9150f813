"""One picture on its way into a frame: what was opened, and what will be sent of it."""

from __future__ import annotations

import msgspec

from gristmill.contract.frame import Image
from gristmill.intake.errors import PictureError
from gristmill.intake.options import EncodeOptions, ImageOptions
from gristmill.intake.picture_source import File
from gristmill.intake.structure import Look, Verdict


class Picture(msgspec.Struct, frozen=True):
    """One picture as it will be sent; `blob` is None when it goes by reference."""

    image: Image
    mime: str
    width: int
    height: int
    blob: bytes | None


class Opened(msgspec.Struct):
    """A picture whose source is known.

    Attributes:
        digest: hash of the source's bytes.
        data: the source's bytes; empty where `picture` is known.
        file: the source, where it is a file.
        picture: what will be sent, where that is known.
        seen: what a look at `data` gave.
    """

    digest: str
    data: bytes
    file: File | None
    picture: Picture | None = None
    seen: Look | PictureError | None = None


def is_fit(seen: Look, size_bytes: int, options: ImageOptions) -> bool:
    """Whether a source may be sent byte for byte.

    Raises:
        PictureError: it is too large to be looked at.
    """
    pixels = seen.width * seen.height
    if pixels > options.bomb_pixels:
        raise PictureError(f"it claims {seen.width} x {seen.height} pixels, more than {options.bomb_pixels:,}")
    if seen.verdict is not Verdict.PLAIN:
        return False
    return not (0 < options.max_pixels < pixels or 0 < options.max_bytes < size_bytes)


def in_the_run(digest: str, data: bytes, mime: str, width: int, height: int) -> Picture:
    """A picture that travels in the store."""
    return Picture(Image(digest, len(data)), mime, width, height, data)


def by_reference(digest: str, file: File, mime: str, width: int, height: int) -> Picture:
    """A picture that stays in a file, named by where it really lies."""
    image = Image(digest, file.size, file.path, file.mtime_ns, file.ctime_ns, file.inode)
    return Picture(image, mime, width, height, None)


def hot_key(digest: str, file: File | None, options: EncodeOptions) -> tuple[str, File | None]:
    """What a picture is remembered by; by reference equal bytes in two files are two, as each is checked on its own."""
    return digest, None if options.inline else file
