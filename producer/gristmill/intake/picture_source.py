"""From what a line names to bytes: a path, ``file://`` or a data URL. Blocking; runs in threads.

Messages name a picture by its path, or by its place where it is a data URL; never by any of its bytes.
"""

from __future__ import annotations

import binascii
import hashlib
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, unquote_to_bytes, urlsplit

import msgspec
import pybase64

from gristmill.intake.draft import PictureRef
from gristmill.intake.errors import PictureError

MAX_SOURCE_BYTES = 512 << 20
_MAX_PATH_CHARS = 1024
_MAX_SHOWN_CHARS = 200
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]+)://", re.IGNORECASE)

_URL_ALPHABET = str.maketrans("-_", "+/")

Identity = tuple[str, int, int]
"""Path, size and modification time of a file: the same while it is not written to."""


class Bytes(msgspec.Struct):
    """The source bytes of one picture; `identity` is None for a data URL."""

    data: bytes
    sha256: str
    identity: Identity | None


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
    return str(Path(root, url).absolute())  # ".." stays: behind a link it does not mean what it seems to


def confine(path: str, roots: Sequence[str]) -> str:
    """Where `path` really lies, all links followed.

    Raises:
        PictureError: beneath none of `roots`.
    """
    real = os.path.realpath(path)
    if not any(Path(real).is_relative_to(root) for root in roots):
        raise PictureError("lies beneath no folder that the daemon may read (--allow-root)")
    return real


def file_identity(path: str) -> Identity:
    """Raises PictureError when there is no such regular file of a sensible size."""
    try:
        status = Path(path).stat()
    except OSError as error:
        raise PictureError(_os_reason(error, path)) from None
    if not stat.S_ISREG(status.st_mode):
        raise PictureError("is not a regular file")
    if status.st_size > MAX_SOURCE_BYTES:
        raise PictureError(f"has {status.st_size:,} bytes, more than {MAX_SOURCE_BYTES:,}")
    return path, status.st_size, status.st_mtime_ns


def read_file(identity: Identity) -> Bytes:
    """Raises PictureError when it can't be read or is just being written."""
    path, size, mtime_ns = identity
    try:
        with Path(path).open("rb", buffering=0) as file:
            data = file.read(size + 1) or b""
            after = os.fstat(file.fileno())
    except OSError as error:
        raise PictureError(_os_reason(error, path)) from None
    if (len(data), after.st_mtime_ns) != (size, mtime_ns):
        raise PictureError("changed while it was read")
    return Bytes(data, hashlib.sha256(data).hexdigest(), identity)


def read_data_url(ref: PictureRef) -> Bytes:
    """Raises PictureError when its base64 is broken."""
    head, comma, payload = ref.url.partition(",")
    if not comma:
        raise PictureError("is no data URL: it has no comma")
    try:
        data = _from_base64(payload) if head.lower().endswith(";base64") else unquote_to_bytes(payload)
    except (binascii.Error, ValueError):
        raise PictureError("has broken base64") from None
    return Bytes(data, hashlib.sha256(data).hexdigest(), None)


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
