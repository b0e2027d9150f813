"""Standard descriptors that are closed or can't be written to, as under cron, a dead terminal or a full disk.

A closed one is dangerous: the next file or socket that a process opens takes its number, and then `print` writes into
it; uvloop aborts a process in which that happens. So each command begins with `repair`. What is told on stderr is for
people, and a run must not end because nobody hears it any more; what goes to stdout is data, and a loss is told.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

STDIN, STDOUT, STDERR = 0, 1, 2


class StdoutError(OSError):
    """Standard output can't be written to, for another reason than that its reader has gone."""


def repair() -> None:
    """Open each standard descriptor that is closed, so that reading or writing it fails (EBADF) and nothing else can
    get its number; to be called before anything is opened."""
    for number, wrong_way in ((STDIN, os.O_WRONLY), (STDOUT, os.O_RDONLY), (STDERR, os.O_RDONLY)):
        if not _is_open(number):
            _open_null(number, wrong_way)
    if sys.stdin is None:
        sys.stdin = open(STDIN, encoding="utf-8", closefd=False)  # noqa: SIM115  as long as the process lives
    if sys.stdout is None:
        sys.stdout = open(STDOUT, "w", encoding="utf-8", closefd=False)  # noqa: SIM115  as above
    if sys.stderr is None:
        sys.stderr = open(STDERR, "w", encoding="utf-8", closefd=False)  # noqa: SIM115  as above
        silence(STDERR)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _open_null(number: int, flags: int) -> None:
    opened = os.open(os.devnull, flags)
    if opened != number:
        os.dup2(opened, number)
        os.close(opened)
    os.set_inheritable(number, True)  # children have to find it open, too


def silence(number: int) -> None:
    """Let everything that is written to the descriptor from now on vanish, also what lies in Python's buffers."""
    _open_null(number, os.O_WRONLY)


@contextlib.contextmanager
def talking() -> Iterator[None]:
    """Write to stderr inside; when that fails, it falls silent for good and all goes on."""
    try:
        yield
    except OSError:
        silence(STDERR)


def put(data: str | bytes) -> None:
    """Write to stdout; text gets its newline.

    Raises:
        BrokenPipeError: nobody reads it any more.
        StdoutError: it can't be written. After either, whatever else goes there vanishes.
    """
    try:
        sys.stdout.buffer.write(data if isinstance(data, bytes) else data.encode(errors="backslashreplace") + b"\n")
        sys.stdout.buffer.flush()
    except OSError as error:
        silence(STDOUT)
        if isinstance(error, BrokenPipeError):
            raise
        raise StdoutError(error.errno, error.strerror) from error
