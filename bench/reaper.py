"""Run one command and measure the CPU of its whole family: `python -m bench.reaper RESULT.json -- COMMAND...`.

The kernel adds a process's CPU to its parent's when the parent waits for it. A process whose parent died first would be
lost, so this one becomes the family's subreaper (Linux): orphans become its own children, and it waits for all of
them before it reads the sum. On other systems orphans are not counted. Its own CPU is not part of the sum.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
ORPHANS_S = 30


def become_subreaper() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def wait_for_orphans() -> None:
    """Return once no child is left, or after a while; what still runs then is not counted."""
    deadline = time.monotonic() + ORPHANS_S
    while time.monotonic() < deadline:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            time.sleep(0.02)
    print("bench: a process outlived its command by 30 s; its CPU is missing", file=sys.stderr)


def main() -> int:
    result, argv = Path(sys.argv[1]), sys.argv[3:]
    become_subreaper()
    started = time.monotonic()
    code = subprocess.run(argv, check=False).returncode
    wall_s = time.monotonic() - started
    wait_for_orphans()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    figures = {"code": code, "wall_s": wall_s, "user_s": used.ru_utime, "sys_s": used.ru_stime}
    result.write_text(json.dumps(figures), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
