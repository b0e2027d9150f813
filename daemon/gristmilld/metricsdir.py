"""The folder through which the processes of one daemon share their metrics.

Each worker writes value files into it that are named by its slot (``counter_worker-0.db``), so a restarted worker goes
on with its counters and no file is ever added. Its gauges say how it stands, so they go when it dies: the supervisor
drops them at the death, before the next generation can open them, and that one drops them again when it starts.

The supervisor makes the folder before its first fork and names it in the environment, where prometheus_client looks for
it; without that variable metrics are off. It holds none of the value files open: here are only names, and the one small
file in which it says who lives (`Supervision`), replaced as a whole.

A daemon that was killed leaves its folder behind. The next one in the same place removes it: a living daemon holds a
lock on its own. Nothing here imports prometheus_client.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import msgspec

ENV = "PROMETHEUS_MULTIPROC_DIR"
_LOCK = "lock"
_SUPERVISION = "supervision.json"


class Supervision(msgspec.Struct, frozen=True):
    """Who lives, as the supervisor sees it.

    Attributes:
        stage: ``running``, or how far the stop has come.
        up: children whose loop has shown life and that are not dead.
        starts: by slot.
        deaths: by slot, then cause.
    """

    stage: str = "running"
    up: list[str] = []
    starts: dict[str, int] = {}
    deaths: dict[str, dict[str, int]] = {}

    def workers_up(self) -> int:
        return sum(name.startswith("worker-") for name in self.up)


class MetricsDir:
    """One daemon's folder, held by its supervisor from `create` to `remove`, which may be called twice."""

    def __init__(self, path: Path, lock_fd: int, *, own_base: Path | None) -> None:
        self.path = path
        self._lock_fd = lock_fd
        self._own_base = own_base
        self._published: Supervision | None = None

    @classmethod
    def create(cls, state_dir: str, daemon_id: str) -> Self:
        """Make the folder, empty, and remove those of dead daemons beside it.

        Args:
            state_dir: of the daemon; "" puts the folder among the temporary files.
            daemon_id: distinct for each start.

        Raises:
            OSError: it can't be made there.
        """
        own_base = None if state_dir else Path(tempfile.mkdtemp(prefix="gristmill-"))
        base = own_base or Path(state_dir) / "metrics"
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(base):
            for other in base.iterdir():
                if other.is_dir():
                    _remove_if_dead(other)
            path = base / daemon_id
            path.mkdir(mode=0o700)
            lock_fd = _lock(path)
        assert lock_fd is not None, "a folder that was made just now is locked by nobody"
        return cls(path, lock_fd, own_base=own_base)

    def enter(self) -> None:
        """Have every process that is forked from now on write its metrics here."""
        os.environ[ENV] = str(self.path)

    def forget(self, process: str) -> None:
        """`process` is dead: its gauges go, its counters stay."""
        forget_gauges(self.path, process)

    def publish(self, supervision: Supervision) -> None:
        """Say who lives; nothing is written when that is known, and a full disk is no reason to stop."""
        if supervision == self._published:
            return
        self._published = supervision
        draft = self.path / f"{_SUPERVISION}.new"
        with contextlib.suppress(OSError):
            draft.write_bytes(msgspec.json.encode(supervision))
            draft.replace(self.path / _SUPERVISION)

    def remove(self) -> None:
        """The daemon ends: nothing of it stays."""
        if self._lock_fd < 0:
            return
        os.environ.pop(ENV, None)
        shutil.rmtree(self._own_base or self.path, ignore_errors=True)
        os.close(self._lock_fd)
        self._lock_fd = -1


def current() -> Path | None:
    """The folder of this daemon; None when metrics are off."""
    path = os.environ.get(ENV)
    return Path(path) if path else None


def forget_gauges(path: Path, process: str) -> None:
    """Drop the gauges of `process`, which must not run."""
    for file in path.glob("gauge_live*.db"):
        if file.name.endswith(f"_{process}.db"):
            file.unlink(missing_ok=True)


def reserve(file: Path, size_bytes: int) -> None:
    """Make a value file of zeros, which is an empty one, unless it is there; so its place on the disk is taken.

    Raises:
        OSError: the disk is full; no part of the file is left.
    """
    if file.exists():
        return
    draft = file.with_suffix(".new")
    try:
        draft.write_bytes(bytes(size_bytes))
        draft.replace(file)
    except OSError:
        draft.unlink(missing_ok=True)
        raise


def value_files(path: Path) -> list[str]:
    """All value files."""
    return sorted(map(str, path.glob("*.db")))


def read_supervision(path: Path) -> Supervision:
    """What the supervisor last said; nothing lives when it has not spoken yet."""
    try:
        return msgspec.json.decode((path / _SUPERVISION).read_bytes(), type=Supervision)
    except (FileNotFoundError, msgspec.MsgspecError):
        return Supervision(stage="starting")


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Alone among the daemons of `folder`: none is made while another tidies up."""
    fd = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _lock(folder: Path) -> int | None:
    """A descriptor that holds the folder's lock; None when somebody else holds it."""
    fd = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def _remove_if_dead(folder: Path) -> None:
    fd = _lock(folder)
    if fd is not None:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(fd)
