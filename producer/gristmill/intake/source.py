"""Which file a job was made from, and whether it is still the same one.

A resumed feeder seeks into INPUT, so INPUT must not have changed: size, modification time and a hash of the first
64 KiB are kept in the manifest. A pipe can't be read twice, so it is spooled to disk before anything is sealed.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from pathlib import Path
from typing import IO

import msgspec

from gristmill.contract.manifest import Source
from gristmill.intake.errors import InputError
from gristmill.intake.options import EncodeOptions

HEAD_BYTES = 64 << 10
_COPY_BYTES = 1 << 20


def identify(path: str | Path) -> Source:
    """The identity of the input at `path`.

    Raises:
        InputError: missing, not readable, or not a regular file.
    """
    path = Path(path)
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise InputError(f"{path} is a folder: give the JSONL file itself")
        if not stat.S_ISREG(status.st_mode):
            raise InputError(f"{path} is not a regular file: pipe it in, and give - as INPUT")
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError as error:
        raise InputError(f"{path} can't be read: {error.strerror or error}") from error
    return Source(
        path=str(path.absolute()),
        size=status.st_size,
        mtime_ns=status.st_mtime_ns,
        head_sha256=hashlib.sha256(head).hexdigest(),
    )


def require_unchanged(source: Source) -> None:
    """Return when the file is still what the job was made from.

    Raises:
        InputError: it has changed or is gone.
    """
    now = identify(source.path)
    if (now.size, now.head_sha256) != (source.size, source.head_sha256):
        raise InputError(f"{source.path} has changed since the job was made: submit it as a new job")
    if now.mtime_ns != source.mtime_ns:
        raise InputError(f"{source.path} was written to since the job was made: submit it as a new job")


def spool_stdin(folder: str | Path, stream: IO[bytes]) -> Path:
    """Copy `stream` to a new file in `folder` (0600, durable) and return its path; memory stays at 1 MiB.

    Raises:
        InputError: the folder can't be written, or the disk is full; nothing is left behind.
    """
    path = Path(folder) / f"stdin-{secrets.token_hex(8)}.jsonl"
    try:
        Path(folder).mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            while piece := stream.read(_COPY_BYTES):
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        path.unlink(missing_ok=True)
        raise InputError(f"standard input can't be spooled to {folder}: {error.strerror or error}") from error
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return path


def input_digest(
    path: str | Path, options: EncodeOptions, *, limit: int | None = None, sample: int | None = None
) -> str:
    """Hex digest over the input's path and all that shapes what is sent: equal for the same command given again."""
    image = options.image
    shape = (
        str(Path(path).resolve()),
        [options.model, options.default_model, options.set, options.system, options.media_root],
        [image.max_pixels, image.max_bytes, image.quality, image.allow_truncated],
        [options.on_bad_line, options.max_line_bytes, limit, sample],
        *([options.format] if options.format != "requests" else []),  # the others' digests stay what they were
    )
    return hashlib.blake2b(msgspec.json.encode(shape, order="sorted"), digest_size=16).hexdigest()
