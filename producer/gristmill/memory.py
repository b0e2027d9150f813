"""How processes through which very many requests pass use their memory.

glibc's malloc by default gives a freed picture back to the kernel, and the next one comes as hundreds of page faults,
which cost as much as reading it. Kept, the same few megabytes serve all of them.

Python looks for cycles of dead objects whenever 700 more objects live than before. A request is a dozen objects, none
of them in a cycle, and hundreds are under way: looking was a twentieth of a worker's time and a tenth of a collector's.
"""

from __future__ import annotations

import gc
import sys
from contextlib import suppress

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -2, -3, -8
_KEPT_BYTES = 64 << 20
_LARGEST_BYTES = 32 << 20
_STEP_BYTES = 1 << 20
_YOUNG_OBJECTS = 20_000


def look_rarely_for_cycles() -> None:
    """Let this process look for cycles only when many more objects live than before."""
    gc.set_threshold(_YOUNG_OBJECTS)


def keep_freed_blocks() -> None:
    """Let this process keep what it frees, up to some tens of megabytes; call it early, before threads start.

    Elsewhere than on glibc nothing happens.
    """
    if sys.platform != "linux":
        return
    import ctypes

    with suppress(OSError, AttributeError):  # another libc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_TOP_PAD, _STEP_BYTES)
        mallopt(_M_ARENA_MAX, 1)
