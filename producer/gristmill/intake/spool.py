"""Where pictures lie that go by reference and are no file of the user's: a folder, each under the hash of its bytes."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from gristmill.intake.errors import FeedError
from gristmill.intake.picture_source import File


def spool(folder: str, digest: str, mime: str, data: bytes) -> File:
    """Keep `data` under its hash. Durable before it has its name.

    Raises:
        FeedError: the folder can't be written, or the disk is full.
    """
    path = Path(folder).resolve() / digest[:2] / f"{digest}.{mime.rpartition('/')[2]}"
    try:
        if path.exists() and path.stat().st_size == len(data):
            return File.of(str(path), path.stat())
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        partial = path.with_suffix(f".{secrets.token_hex(4)}.partial")
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        return File.of(str(path), path.stat())
    except OSError as error:
        raise FeedError(f"pictures can't be spooled to {folder}: {error.strerror or error}") from error
