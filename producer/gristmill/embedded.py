"""A private store for when no Redis is given: one Valkey per state folder, shared by every command that uses it.

Who may do what is decided by four `flock`s in ``STATE/store``, never by a pid (pids are reused):

=============  =========================================================================================
file           held by
=============  =========================================================================================
`start.lock`   exclusively, by whoever is starting or stopping the server, for as long as that takes
`clients.lock` shared, by every client for as long as it uses the store; whoever wants to stop the server tests it
`guard.lock`   likewise; only the guard waits for it, so that its waiting cannot spoil a closing client's test
`server.lock`  exclusively, by the server process itself: it inherits the descriptor, so that the lock goes
               when the process goes, however it ends
`guards.lock`  shared, by every guard process, inherited likewise: whoever removes the folder waits for them
=============  =========================================================================================

The first client starts the server, later ones join, and the last one to close stops it. The server is detached (its own
session), so that Ctrl-C in a terminal does not reach it. When the clients are killed, `gristmill.embedded_guard`, which
waits for `guard.lock`, stops the server in their place. What a crash leaves is a socket file and perhaps a running
server; both are found and mended by the next `open`.

Everything here is synchronous and uses no Redis library: the daemon's supervisor opens the store before it forks.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Self
from urllib.parse import quote

from gristmill.embedded_server import MALLOC, command, find_server, last_words, options_of, start_detached

SOCKET_PATH_BYTES = 100
"""Longest path that we give to a unix socket; the kernel's limit is 107 bytes on Linux and 103 on macOS."""

START_TIMEOUT_S = 20.0
"""Until the socket answers at all; a server that answers LOADING is waited for without a limit while it lives."""

START_ATTEMPTS = 3
"""A server that ends before it answers may have been killed; one that can't run ends at once each time."""

STOP_TIMEOUT_S = 60.0
"""A server that is stopping writes and fsyncs its log."""

QUIET_S = 2.0
"""Waiting is announced on stderr once it takes longer."""


class EmbeddedStoreError(RuntimeError):
    """The private store could not be started or joined; the message says where, why, and what to do."""


def default_state_dir() -> Path:
    """``$XDG_STATE_HOME/gristmill``, by default ``~/.local/state/gristmill``."""
    base = os.environ.get("XDG_STATE_HOME", "")  # relative values are ignored, as its specification has it
    return (Path(base) if base.startswith("/") else Path.home() / ".local" / "state") / "gristmill"


class EmbeddedStore:
    """A client's hold on the private store of one state folder.

    `open` returns with the server ready for commands; `close` may be called twice. A process that ends without `close`
    gives up its hold all the same.
    """

    def __init__(self, folder: Path, url: str, held: list[IO[bytes]]) -> None:
        self.folder = folder
        self.url = url
        self._held = held

    @classmethod
    def open(cls, state_dir: Path | None = None) -> EmbeddedStore:
        """Join the store of `state_dir` (by default `default_state_dir()`), starting it if it is not running.

        Raises:
            EmbeddedStoreError: no server binary, a folder that cannot be used, or a server that does not start.
        """
        state_dir = (state_dir or default_state_dir()).expanduser().absolute()
        try:
            folder = _private_folder(state_dir)
            return cls._join(folder)
        except OSError as error:
            raise EmbeddedStoreError(
                f"cannot use the state folder {state_dir}: {error.strerror}; give another with --state-dir DIR"
            ) from error

    @classmethod
    def _join(cls, folder: Path) -> EmbeddedStore:
        with _exclusive(folder / "start.lock"), contextlib.ExitStack() as undo:
            held: list[IO[bytes]] = [
                undo.enter_context((folder / name).open("ab")) for name in ("clients.lock", "guard.lock")
            ]
            for file in held:
                fcntl.flock(file, fcntl.LOCK_SH)
            path = _ready(folder)
            undo.pop_all()
        return cls(folder, f"unix://{quote(str(path))}", held)

    def close(self) -> None:
        """Let go of the store; when no other client holds it, stop the server and wait until it has ended."""
        held, self._held = self._held, []
        if not held:
            return
        with _exclusive(self.folder / "start.lock"):
            for file in held:
                fcntl.flock(file, fcntl.LOCK_UN)  # explicit: forked children may hold copies of the descriptor
                file.close()
            stop_if_unused(self.folder)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What a child must inherit so that the store outlives this process for as long as the child lives."""
        return tuple(file.fileno() for file in self._held)

    def revive(self) -> None:
        """Start the server again if it was killed; its address stays the same.

        Raises:
            EmbeddedStoreError: it does not start.
        """
        with _exclusive(self.folder / "start.lock"):
            _ready(self.folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# --- folders and locks


def _private_folder(state_dir: Path) -> Path:
    """``STATE/store``, made with mode 0700 where it is missing; prompts lie in it."""
    folder = state_dir / "store"
    state_dir.parent.mkdir(parents=True, exist_ok=True)
    state_dir.mkdir(mode=0o700, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)
    return folder


@contextlib.contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    """Hold the lock file at `path`; say so on stderr when that takes long."""
    with path.open("ab") as lock:
        _patiently(
            lambda: _try_lock(lock),
            lambda: True,
            "waiting for another command to start or stop the store",
            timeout_s=None,
        )
        yield


def _try_lock(file: IO[bytes]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _patiently(done: Callable[[], bool], alive: Callable[[], bool], message: str, *, timeout_s: float | None) -> bool:
    """Poll until `done`; False when `alive` ceases or `timeout_s` passes. After `QUIET_S` stderr gets the message."""
    began, told = time.monotonic(), False
    while not done():
        waited_s = time.monotonic() - began
        if not alive() or (timeout_s is not None and waited_s > timeout_s):
            return False
        if waited_s > QUIET_S and not told:
            told = True
            sys.stderr.write(f"gristmill: {message} ...\n")
            sys.stderr.flush()
        time.sleep(0.01)
    return True


def server_lives(folder: Path) -> bool:
    """Whether some process holds `server.lock`."""
    with (folder / "server.lock").open("ab") as lock:
        return not _try_lock(lock)


# --- the socket


def _socket_path(folder: Path) -> Path:
    """Where the server is to listen: in `folder`, or in a short private folder when that path would be too long.

    Raises:
        EmbeddedStoreError: the short folder belongs to someone else.
    """
    path = folder / "s"
    if len(os.fsencode(path)) <= SOCKET_PATH_BYTES:
        return path
    name = "gristmill-" + hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:16]
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    bases = [Path(runtime)] if runtime.startswith("/") and Path(runtime).is_dir() else []
    bases += [Path(tempfile.gettempdir()), Path("/tmp")]  # noqa: S108  the subfolder is checked to be ours and private
    for base in bases:
        path = base / name / "s"
        if len(os.fsencode(path)) <= SOCKET_PATH_BYTES and _own_folder(path.parent):
            return path
    raise EmbeddedStoreError(f"the path {folder} is too long for a unix socket: give a shorter --state-dir DIR")


def _own_folder(path: Path) -> bool:
    """Make `path` with mode 0700; False where it is not ours alone (somebody else may have made it first)."""
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        info = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(info.st_mode) and info.st_uid == os.getuid() and not info.st_mode & 0o077


def _running_socket(folder: Path) -> Path | None:
    """The socket of the running server; None when none runs. A server that is ending is waited for."""
    if not server_lives(folder):
        return None
    with contextlib.suppress(OSError):
        path = Path((folder / "socket").read_text(encoding="utf-8"))
        if command(path, "PING"):
            return path
    if _patiently(
        lambda: not server_lives(folder), lambda: True, "waiting for the store to end", timeout_s=STOP_TIMEOUT_S
    ):
        return None
    raise EmbeddedStoreError(
        f"a store server holds {folder} but does not answer: end it (its log is {folder / 'log'}) and try again"
    )


# --- start and stop; the caller holds start.lock


def _ready(folder: Path) -> Path:
    """The socket of the server, started if need be, once it has read its log from disk.

    Raises:
        EmbeddedStoreError: it does not start, or ends while it is loading, several times.
    """
    for _ in range(START_ATTEMPTS):
        path = _running_socket(folder) or _start(folder)
        if _is_loaded(path, folder):
            return path
    raise EmbeddedStoreError(f"the store ended while it was loading: {last_words(folder)}")


def _start(folder: Path) -> Path:
    """Start server and guard, both detached, and return the socket once it answers.

    Raises:
        EmbeddedStoreError: no binary, or the server ended; the message has the end of its log.
    """
    try:
        binary = find_server()
    except FileNotFoundError as error:
        raise EmbeddedStoreError(str(error)) from error
    path = _socket_path(folder)
    (folder / "socket").write_text(str(path), encoding="utf-8")
    if not any(_start_server(binary, folder, path) for _ in range(START_ATTEMPTS)):
        raise EmbeddedStoreError(f"the store did not start ({binary}): {last_words(folder)}")
    with (folder / "guards.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        start_detached([sys.executable, "-m", "gristmill.embedded_guard", str(folder)], (lock.fileno(),))
    return path


def _start_server(binary: Path, folder: Path, path: Path) -> bool:
    """Start the server alone; whether it answers."""
    path.unlink(missing_ok=True)
    (folder / "log").write_bytes(b"")
    with (folder / "server.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        start_detached([str(binary), *options_of(folder, path)], (lock.fileno(),), MALLOC)
    return _patiently(
        lambda: bool(command(path, "PING")),
        lambda: server_lives(folder),
        "waiting for the store to start",
        timeout_s=START_TIMEOUT_S,
    )


def _is_loaded(path: Path, folder: Path) -> bool:
    """Wait until the server has read its log from disk; False when it ended meanwhile."""
    return _patiently(
        lambda: command(path, "PING") == "+PONG", lambda: server_lives(folder),
        "the store is loading its data", timeout_s=None,
    )  # fmt: skip


def stop_if_unused(folder: Path) -> None:
    """Stop the server when no client holds it; the caller holds `start.lock`.

    A store without jobs leaves nothing on disk: its log holds what prompts and answers went through.
    """
    with (folder / "clients.lock").open("ab") as clients:
        if not _try_lock(clients) or not server_lives(folder):
            return
        path = Path((folder / "socket").read_text(encoding="utf-8"))
        empty = command(path, "ZCARD", "gm:jobs") == ":0"
        command(path, "SHUTDOWN", timeout_s=STOP_TIMEOUT_S)
        gone = _patiently(
            lambda: not server_lives(folder), lambda: True, "waiting for the store to end", timeout_s=STOP_TIMEOUT_S
        )
        if gone and empty:
            shutil.rmtree(folder / "appendonlydir", ignore_errors=True)
        if gone and path.parent != folder:
            shutil.rmtree(path.parent, ignore_errors=True)
