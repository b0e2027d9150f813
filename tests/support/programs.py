"""Programs that use the SDK, as processes of their own: started, watched, and looked for afterwards."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Self

from tests.support import cli

ROOT = Path(__file__).resolve().parents[2]


class Program:
    """``with Program(folder, source, *argv) as program``: Python code in a process whose state lies in `folder`.

    Warnings are errors in it. What it prints can be waited for with `say`.
    """

    def __init__(self, folder: Path, source: str, *argv: str, **environment: str) -> None:
        self.state = folder / "state"
        script = folder / "program.py"
        script.write_text(source, encoding="utf-8")
        self._argv = [sys.executable, "-W", "error", str(script), *argv]
        self._environment = {
            **cli.environment(),
            "XDG_STATE_HOME": str(self.state),
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            **environment,
        }
        self._folder = folder
        self._said: list[str] = []
        self._news = threading.Condition()

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            self._argv,
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._listener.join(10)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self._said.append(line.rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    @property
    def said(self) -> str:
        """All that it has printed, errors too."""
        return "\n".join(self._said)

    def say(self, words: str, timeout_s: float = 40.0) -> str:
        """Wait for a line that holds `words`; the line."""

        def found() -> str | None:
            return next((line for line in self._said if words in line), None)

        with self._news:
            self._news.wait_for(lambda: found() or not self._listener.is_alive(), timeout_s)
        line = found()
        assert line is not None, f"it did not say {words!r}:\n{self.said}"
        return line

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, timeout_s: float = 60.0) -> int:
        """Its exit code."""
        code = self.process.wait(timeout_s)
        self._listener.join(10)
        return code

    def left(self) -> list[str]:
        """Processes and files of it that are there now; the processes by their command lines."""
        found = [str(path) for path in self.state.glob("gristmill/*")]
        mark = str(self.state).encode()
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                words, environment = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
            except OSError:
                continue
            if mark in environment or mark in words:
                found.append(words.replace(b"\0", b" ").decode(errors="replace"))
        return found

    def daemon_pids(self) -> list[int]:
        """The daemon's processes: the supervisor first, then those below it."""
        pids = []
        mark = str(self.state).encode()
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                words = (entry / "cmdline").read_bytes()
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if mark in words and b"gristmilld" in words:
                pids.append((parent != self.process.pid, int(entry.name)))
        return [pid for _, pid in sorted(pids)]

    def busy_worker(self) -> int:
        """A worker of its daemon, in mid-work: the process with the most open descriptors, which are its calls."""

        def descriptors(pid: int) -> int:
            try:
                return len(list(Path(f"/proc/{pid}/fd").iterdir()))
            except OSError:  # it has just ended
                return 0

        return max(self.daemon_pids(), key=descriptors)
