"""From what a line names to bytes: a path, ``file://`` or a data URL. Blocking; runs in threads.

Messages name a picture by its path, or by its place where it is a data URL; never by any of its bytes.
"""

from __future__ import annotations

import binascii
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, unquote_to_bytes, urlsplit

import msgspec
import pybase64

from gristmill.contract.digest import digest_of
from gristmill.intake.draft import PictureRef
from gristmill.intake.errors import PictureError

MAX_SOURCE_BYTES = 512 << 20
_MAX_PATH_CHARS = 1024
_MAX_SHOWN_CHARS = 200
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]+)://", re.IGNORECASE)

_URL_ALPHABET = str.maketrans("-_", "+/")


class File(NamedTuple):
    """A file as it was seen: equal to another while it is neither written to nor replaced."""

    path: str
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    @classmethod
    def of(cls, path: str, status: os.stat_result) -> File:
        """The file at `path` with this `status`."""
        return cls(path, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


class Bytes(msgspec.Struct):
    """The source bytes of one picture; `file` is None for a data URL."""

    data: bytes
    digest: str
    file: File | None


def is_data_url(ref: PictureRef) -> bool:
    return ref.url[:5].lower() == "data:"


def describe(ref: PictureRef) -> str:
    """What to call the picture in a message."""
    if is_data_url(ref):
        return f"the data URL in {ref.place}"
    if len(ref.url) > _MAX_PATH_CHARS:
        return f"the picture in {ref.place}"
    shown = ref.url if len(ref.url) <= _MAX_SHOWN_CHARS else "..." + ref.url[-_MAX_SHOWN_CHARS:]
    return f"picture {shown!r}"


def resolve(ref: PictureRef, root: str) -> str:
    """The absolute path that `ref` means; relative ones lie below `root`.

    Raises:
        PictureError: it can't be a path.
    """
    url = ref.url
    if len(url) > _MAX_PATH_CHARS:
        raise PictureError("is too long to be a path: base64 needs data:image/...;base64, before it")
    scheme = _SCHEME.match(url)
    if scheme is not None:
        if scheme[1].lower() != "file":
            raise PictureError(f"has the scheme {scheme[1]}://, only paths, file://, http(s):// and data URLs are read")
        parts = urlsplit(url)
        if parts.netloc not in ("", "localhost"):
            raise PictureError("is a file on another host")
        url = unquote(parts.path)
    if "\0" in url:
        raise PictureError("has a path with a zero byte")
    path = os.path.join(root, url)  # noqa: PTH118 - a Path takes as long as reading the file's status
    if path[:1] == "/" and "//" not in path and "/." not in path:
        return path
    return str(Path(path).absolute())  # ".." stays: behind a link it does not mean what it seems to


def confine(path: str, roots: Sequence[str]) -> str:
    """Where `path` really lies, all links followed.

    Raises:
        PictureError: beneath none of `roots`.
    """
    real = os.path.realpath(path)
    if not any(Path(real).is_relative_to(root) for root in roots):
        raise PictureError("lies beneath no folder that the daemon may read (--allow-root)")
    return real


def look_up(path: str) -> File:
    """Raises PictureError when there is no such regular file of a sensible size."""
    try:
        status = Path(path).stat()
    except OSError as error:
        raise PictureError(_os_reason(error, path)) from None
    if not stat.S_ISREG(status.st_mode):
        raise PictureError("is not a regular file")
    if status.st_size > MAX_SOURCE_BYTES:
        raise PictureError(f"has {status.st_size:,} bytes, more than {MAX_SOURCE_BYTES:,}")
    return File.of(path, status)


def read_file(file: File) -> Bytes:
    """Raises PictureError when it can't be read or is just being written."""
    try:
        with Path(file.path).open("rb", buffering=0) as stream:
            data = stream.read(file.size + 1) or b""
            after = File.of(file.path, os.fstat(stream.fileno()))
    except OSError as error:
        raise PictureError(_os_reason(error, file.path)) from None
    if len(data) != file.size or after != file:
        raise PictureError("changed while it was read")
    return Bytes(data, digest_of(data), file)


def read_data_url(ref: PictureRef) -> Bytes:
    """Raises PictureError when its base64 is broken."""
    data = data_of(ref)
    return Bytes(data, digest_of(data), None)


def data_of(ref: PictureRef) -> bytes:
    """The bytes in a data URL. Raises PictureError when its base64 is broken."""
    head, comma, payload = ref.url.partition(",")
    if not comma:
        raise PictureError("is no data URL: it has no comma")
    try:
        return _from_base64(payload) if head.lower().endswith(";base64") else unquote_to_bytes(payload)
    except (binascii.Error, ValueError):
        raise PictureError("has broken base64") from None


def _from_base64(text: str) -> bytes:
    """Strict, but for what is seen in the wild: line breaks, the URL alphabet, missing padding, percent signs."""
    try:
        return pybase64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        text = "".join(unquote(text).split()).rstrip("=").translate(_URL_ALPHABET)
        return pybase64.b64decode(text + "=" * (-len(text) % 4), validate=True)


def _os_reason(error: OSError, path: str) -> str:
    if isinstance(error, FileNotFoundError):
        folder = str(Path(path).parent)[-_MAX_SHOWN_CHARS:]
        return f"does not exist (looked in {folder}; relative paths lie below --media-root, else the input's folder)"
    if isinstance(error, PermissionError):
        return "may not be read by this user"
    return f"can't be read: {error.strerror or type(error).__name__}"
