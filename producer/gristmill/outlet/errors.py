"""Everything that the outlet refuses or cannot do, as types.

OutletError
├── OutRefusedError      OUT holds something that is not ours, or is no file
├── WorkBusyError        another process writes this OUT
├── DiskError            the disk is full, broken or not writable
├── CollectorBusyError   another collector holds the job's lease
├── LeaseLostError       another collector has taken the lease over
├── DamagedError         results in the store cannot be read
└── ProofError           the counts at the end do not agree

Each message is one sentence for a person: what, where, and what to do.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class OutletError(Exception):
    """The base of all errors of this package."""


class OutRefusedError(OutletError):
    """OUT exists and must not be touched."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(why)
        self.path = path


class WorkBusyError(OutletError):
    """Another process holds the lock of this OUT.

    Attributes:
        job: what it works on, None while it has no job yet or cannot be read.
        pid: its process id, None when it cannot be read.
        host: where it runs.
    """

    def __init__(self, path: Path, job: str | None, pid: int | None, host: str) -> None:
        who = f"job {job}, pid {pid}, is writing this" if job else f"pid {pid} is preparing this"
        where = f" on {host}" if host else ""
        then = f"`producer watch {job}`" if job else "wait for it, or choose another output"
        super().__init__(f"{path}: {who}{where}; {then}")
        self.job = job
        self.pid = pid
        self.host = host


class DiskError(OutletError):
    """A file could not be written or read; results not yet durable are still in the store.

    Attributes:
        path: the file.
        errno: the operating system's number.
    """

    def __init__(self, path: Path, error: OSError) -> None:
        reason = os.strerror(error.errno) if error.errno else str(error)
        super().__init__(f"{path}: {reason}; mend it and run the same command again, nothing is lost")
        self.path = path
        self.errno = error.errno


class CollectorBusyError(OutletError):
    """The job's collector lease belongs to somebody else.

    Attributes:
        holder: who holds it.
        expires_in_ms: when it lapses unless renewed, ms.
    """

    def __init__(self, job: str, holder: str, expires_in_ms: int) -> None:
        super().__init__(
            f"job {job}: {holder or 'another process'} is collecting its results; "
            f"stop that one, or take over with `producer results {job} --take`"
        )
        self.holder = holder
        self.expires_in_ms = expires_in_ms


class LeaseLostError(OutletError):
    """The lease was taken over while we collected; what was durable stays good."""

    def __init__(self, job: str) -> None:
        super().__init__(f"job {job}: another collector has taken over; `producer status {job}` names it")


class DamagedError(OutletError):
    """Results in the store cannot be read. All others are durable; these are still where they were.

    Attributes:
        indices: theirs, in the job.
    """

    def __init__(self, job: str, indices: list[int]) -> None:
        some = ", ".join(map(str, indices[:5])) + (", ..." if len(indices) > 5 else "")
        what = f"the result of request {some} is" if len(indices) == 1 else f"{len(indices)} results ({some}) are"
        super().__init__(
            f"job {job}: {what} damaged in the store and can't be read; all others are kept. `producer run` over the "
            f"same OUT sends what is missing (a submitted job is removed first: `producer rm {job}`)"
        )
        self.indices = indices


class ProofError(OutletError):
    """The counts at the end differ; nothing was removed.

    Attributes:
        ordinals: the first few lines (places in INPUT, from 0) that are concerned.
    """

    def __init__(self, message: str, ordinals: list[int] | None = None) -> None:
        super().__init__(message)
        self.ordinals = ordinals or []


@contextmanager
def disk(path: Path) -> Iterator[None]:
    """Let an OSError out as a `DiskError` that names `path`."""
    try:
        yield
    except OSError as error:
        raise DiskError(path, error) from error
