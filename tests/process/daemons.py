"""The real daemon as a process of its own, for tests that kill its parts."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.cli import environment
from tests.support.wait import wait_until_sync


class Daemon:
    """``gristmilld up`` with its log in FOLDER/log; children are found by what it says of them at level debug."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        redis: str = "",
        open_files: int = 0,
        module: str = "gristmilld",
        **env: str,
    ) -> None:
        self.log_path = folder / "log"
        argv = [sys.executable, "-m", module, "up", "--log-level", "debug", *options]
        if open_files:
            argv = ["sh", "-c", f'ulimit -n {open_files}; exec "$@"', "sh", *argv]
        env |= {"GRISTMILL_REDIS_URL": redis} if redis else {}
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment(**env), start_new_session=True
            )

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def says(self, text: str, times: int = 1) -> None:
        """Wait until the log has `text` at least `times` times."""
        wait_until_sync(lambda: self.log.count(text) >= times, description=f"{text!r} x{times} in: {self.log[-3000:]}")

    def pid_of(self, slot: str, generation: int = 0) -> int:
        """The pid of a child, once it has been started."""
        wanted = f"{slot} started, generation {generation}, pid "
        self.says(wanted)
        found = re.search(re.escape(wanted) + r"(\d+)", self.log)
        assert found is not None
        return int(found[1])

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        return self.process.wait(30)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(30)
