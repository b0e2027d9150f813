"""The one place that forks, signals and buries processes.

A child starts with nothing of its parent's but standard output and error and the descriptors it is given: signal
handlers are the default ones, it is in a process group of its own (a terminal's Ctrl-C reaches the supervisor alone),
stdin is empty, and it dies with its parent: by PDEATHSIG on Linux, elsewhere by the end of file on the pipe that it
watches. It never returns into the code that forked it. The supervisor forks all children but one kind: a worker has a
ward (`worker.ward`), which forks a process for each request that may kill it.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection
from typing import NoReturn

import msgspec

log = logging.getLogger(__name__)

EXIT_SOFTWARE = 70
"""The exit code of a child whose code raised."""

SUPERVISED_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD})
"""What the supervisor handles; held back around a fork, so that none reaches a child half made."""

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None
if _libc is not None:
    _libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]


class Ended(msgspec.Struct, frozen=True):
    """How a process ended: by exit code, or by signal when `signum` is not 0."""

    exit_code: int = 0
    signum: int = 0


def fork(run: Callable[[], int], name: str, *, keep: Collection[int]) -> int:
    """Fork a child that runs `run` and exits with what it returns; its pid.

    Args:
        run: called in the child alone.
        name: what ``ps -o comm`` and ``top`` call it, on Linux; 15 characters are shown.
        keep: descriptors that the child keeps beside standard output and error.

    Raises:
        OSError: no process or no memory is left.
    """
    assert threading.active_count() == 1, "a process with threads can't fork safely"
    sys.stdout.flush()
    sys.stderr.flush()
    gc.freeze()  # what stands now is shared with the child for good: no collection writes to its pages
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SUPERVISED_SIGNALS)
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _be_child(run, name, keep, parent, before)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return pid


def _be_child(run: Callable[[], int], name: str, keep: Collection[int], parent: int, mask: Collection[int]) -> NoReturn:
    code = EXIT_SOFTWARE
    try:
        _detach(keep, parent)
        _call_it(name)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        code = run()
    except BaseException:  # nothing may unwind into the supervisor's frames
        log.error("this process failed", exc_info=True)
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _detach(keep: Collection[int], parent: int) -> None:
    """Make a process of its own of a fresh fork."""
    signal.set_wakeup_fd(-1)
    for signum in SUPERVISED_SIGNALS:
        signal.signal(signum, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.setpgid(0, 0)
    _die_with(parent)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    _close_all_but({0, 1, 2, *keep})
    faulthandler.enable()  # SIGABRT prints where a hung child hangs


def _die_with(parent: int) -> None:
    """Have the kernel end this process when `parent` dies; leave at once when it has died already."""
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(EXIT_SOFTWARE)


def _call_it(name: str) -> None:
    if _libc is not None:
        text = ctypes.create_string_buffer(name.encode()[:15])
        _libc.prctl(_PR_SET_NAME, ctypes.addressof(text), 0, 0, 0)


def _close_all_but(keep: Collection[int]) -> None:
    start = 0
    for fd in sorted(keep):
        if fd > start:  # an empty range at 0 would close everything
            os.closerange(start, fd)
        start = fd + 1
    os.closerange(start, max(start, os.sysconf("SC_OPEN_MAX")))


def send(pid: int, signum: int) -> None:
    """Send `signum` to a child that has not been buried yet; its pid can't be anyone else's till then."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signum)


def poll(pid: int) -> Ended | None:
    """Bury the child if it is dead; None while it lives."""
    try:
        found, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        # somebody else has taken its status (SIGCHLD ignored by whoever started us): dead, of unknown cause
        return Ended(exit_code=EXIT_SOFTWARE)
    return _ended(status) if found else None


def bury(pid: int) -> Ended:
    """Wait until the child is dead, and bury it."""
    return _ended(os.waitpid(pid, 0)[1])


def _ended(status: int) -> Ended:
    if os.WIFSIGNALED(status):
        return Ended(signum=os.WTERMSIG(status))
    return Ended(exit_code=os.waitstatus_to_exitcode(status))
