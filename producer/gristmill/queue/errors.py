"""What the queue raises. Expected outcomes (full, lost, gone while working) are statuses in `replies`, not exceptions.

::

    QueueError
    ├── JobNotFoundError    the job is not in the store
    ├── JobExistsError      another job has this id
    ├── StoreFullError      the store is at its memory limit and refused new payload
    └── StoreError          the store itself is unfit (version, eviction policy, read-only)
"""

from __future__ import annotations


class QueueError(Exception):
    """Base of all errors of the queue."""


class JobNotFoundError(QueueError):
    """The job is not in the store: never created, or removed."""

    def __init__(self, job: str) -> None:
        super().__init__(f"there is no job {job!r} in this store: `producer ls` shows those that are there")
        self.job = job


class JobExistsError(QueueError):
    """Another job already has this id."""

    def __init__(self, job: str) -> None:
        super().__init__(f"a job {job!r} is already in this store: choose another id, or `producer rm {job}` first")
        self.job = job


class StoreFullError(QueueError):
    """The store is at its memory limit. Nothing is lost: the same call succeeds once results have been collected."""

    def __init__(self) -> None:
        super().__init__(
            "the store is at its memory limit and takes no new payload: collect results, "
            "lower the payload and results marks, or raise maxmemory"
        )


class StoreError(QueueError):
    """The store is unfit for a queue; the message says why and how to fix it."""
