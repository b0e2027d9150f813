"""Open files: raise the soft limit to the hard one, and refuse a concurrency that can't fit.

Without this a worker finds out in the middle of a job, and the reason shows as "connection error".
"""

from __future__ import annotations

import resource

MOST_FILES = 1 << 20
"""A higher limit helps nobody here and makes every loop over descriptors slow."""

SPARE_FILES = 128
"""What a worker opens beside its requests: store, pipes, pictures, metrics, probes."""


def raise_open_files() -> int:
    """Raise this process's soft limit of open files as far as allowed; the limit that holds now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return MOST_FILES if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):  # macOS names no hard limit, but has one
        return soft
    return wanted


def explain_misfit(concurrency: int, open_files: int) -> str | None:
    """Why `concurrency` requests in flight don't fit into `open_files` descriptors; None when they do."""
    if concurrency + SPARE_FILES <= open_files:
        return None
    most = max(open_files - SPARE_FILES, 0)
    return (
        f"a concurrency of {concurrency} per worker needs {concurrency + SPARE_FILES} open files, but the limit here "
        f"is {open_files} (ulimit -Hn): give --concurrency {most} or less, or raise the limit"
    )
