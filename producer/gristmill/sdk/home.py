"""Where a client's requests lie: in a store that was named, or in a private one that leaves nothing behind.

A private store lies in a folder of its own beneath the state folder (or the folder for temporary files, where the
state folder can't be written). The folder goes when the client closes. When its process is killed, the store's guard
stops the server and removes the folder (`embedded_guard`); when even the guard is killed, the next client that starts
on this machine sweeps it up.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import IO, Self

from gristmill.embedded import EmbeddedStore, EmbeddedStoreError, default_state_dir
from gristmill.embedded_guard import EPHEMERAL
from gristmill.sdk.errors import SetupError

PREFIX = "private-"
_SWEEP_AFTER_S = 60.0
"""A younger folder may be of a client that is just starting."""
_GUARD_PATIENCE_S = 5.0


class Home:
    """A store's address, and the hold on it where it is an embedded one; `close` may be called twice.

    Attributes:
        url: may hold a password; not for messages.
        folder: of a private store, for its daemon's log and settings; None for another.
    """

    def __init__(self, url: str, store: EmbeddedStore | None = None, folder: Path | None = None) -> None:
        self.url = url
        self.folder = folder
        self._store = store
        self._pid = os.getpid()

    @classmethod
    def named(cls, url: str) -> Self:
        """The store at `url`."""
        return cls(url)

    @classmethod
    def shared(cls, state_dir: Path) -> Self:
        """The embedded store of a state folder, which commands and other clients use, too.

        Raises:
            SetupError: it does not start.
        """
        store = _open(state_dir)
        return cls(store.url, store)

    @classmethod
    def private(cls) -> Self:
        """A new store in a new folder.

        Raises:
            SetupError: it does not start, or no folder can be made.
        """
        folder = _new_folder()
        try:
            (folder / "store").mkdir(mode=0o700)
            (folder / "store" / EPHEMERAL).touch()
            store = _open(folder)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return cls(store.url, store, folder)

    @property
    def is_private(self) -> bool:
        return self.folder is not None

    @property
    def is_embedded(self) -> bool:
        """Whether its server runs on this machine, under our care."""
        return self._store is not None

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What a child must inherit so that the store lives as long as the child."""
        return () if self._store is None else self._store.descriptors

    def revive(self) -> None:
        """Start an embedded server again if it was killed; blocks."""
        if self._store is not None:
            with contextlib.suppress(EmbeddedStoreError):  # tried again at the next look
                self._store.revive()

    def close(self) -> None:
        """Let go of the store; a private one is stopped, and its folder removed. Blocks until that is done."""
        store, self._store = self._store, None
        if store is None or os.getpid() != self._pid:  # a fork must not stop what its parent uses
            return
        if self.folder is None:
            store.close()
            return
        with (store.folder / "guards.lock").open("rb") as guards:
            store.close()
            _wait_unlocked(guards)  # a guard that still looks around would make files anew beneath our hands
        shutil.rmtree(self.folder, ignore_errors=True)


def _open(state_dir: Path) -> EmbeddedStore:
    try:
        return EmbeddedStore.open(state_dir)
    except EmbeddedStoreError as error:
        raise SetupError(str(error)) from error


def _new_folder() -> Path:
    base = default_state_dir()
    try:
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        _sweep(base)
        return Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
    except OSError:
        pass
    base = Path(tempfile.gettempdir()) / f"gristmill-{os.getuid()}"
    try:
        base.mkdir(mode=0o700, exist_ok=True)
        if base.stat().st_uid != os.getuid():
            raise SetupError(f"{base} belongs to somebody else: set XDG_STATE_HOME to a folder of yours")
        _sweep(base)
        return Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
    except OSError as error:
        raise SetupError(
            f"no folder can be made for the private store in {base} ({error.strerror}): "
            "set XDG_STATE_HOME to a folder that can be written"
        ) from error


def _wait_unlocked(lock: IO[bytes]) -> None:
    """Return once nobody holds `lock`; after a few seconds in any case."""
    deadline = time.monotonic() + _GUARD_PATIENCE_S
    while time.monotonic() < deadline:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.005)
        else:
            return


def _sweep(base: Path) -> None:
    """Remove private folders that nothing holds any more: their guard was killed, too, or the machine went down."""
    for folder in base.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > _SWEEP_AFTER_S and not _held(folder / "store"):
                shutil.rmtree(folder, ignore_errors=True)


def _held(store: Path) -> bool:
    """Whether a client, a child of one, or the server lives."""
    for name in ("clients.lock", "server.lock"):
        try:
            with (store / name).open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            continue
        except BlockingIOError:
            return True
    return False
