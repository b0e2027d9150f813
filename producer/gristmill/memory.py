"""How glibc's malloc treats large blocks, for processes that take and free pictures all the time.

By default a freed picture goes back to the kernel and the next one comes as hundreds of page faults, which cost as much
as reading it. Kept, the same few megabytes serve all of them. Elsewhere than on glibc nothing happens.
"""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -2, -3, -8
_KEPT_BYTES = 64 << 20
_LARGEST_BYTES = 32 << 20
_STEP_BYTES = 1 << 20


def keep_freed_blocks() -> None:
    """Let this process keep what it frees, up to some tens of megabytes; call it early, before threads start."""
    if sys.platform != "linux":
        return
    with suppress(OSError, AttributeError):  # another libc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_TOP_PAD, _STEP_BYTES)
        mallopt(_M_ARENA_MAX, 1)
