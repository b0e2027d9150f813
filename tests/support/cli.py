"""The command `producer` as a user calls it: another process, its own streams, a clean environment."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Self

import pytest

from tests.support.wait import wait_until_sync

_OURS = ("OPENAI_", "GRISTMILL_", "NO_COLOR")


def environment(**more: str) -> dict[str, str]:
    """The environment without what would change a command's meaning, plus `more`."""
    return {**{k: v for k, v in os.environ.items() if not k.startswith(_OURS)}, **more}


def use_bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what runs in the test's own process: see `environment`."""
    for name in os.environ.keys() - environment().keys():
        monkeypatch.delenv(name)


def command(*words: object) -> list[str]:
    """The argv of ``producer WORDS``."""
    return [sys.executable, "-m", "gristmill", *map(str, words)]


def producer(*words: object, timeout_s: float = 60, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    """Run ``producer WORDS`` to its end; one that is not done after `timeout_s` is ended and returns 124."""
    with subprocess.Popen(
        command(*words),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**env),
    ) as process:
        try:
            out, err = process.communicate(stdin, timeout=timeout_s)
            code = process.returncode
        except subprocess.TimeoutExpired:
            process.kill()
            (out, err), code = process.communicate(), 124
    return subprocess.CompletedProcess(command(*words), code, out, err)


def write_requests(path: Path, n: int, *, words: int = 5) -> Path:
    """`n` chat requests with ids c0, c1, ... and prompts of `words` words."""
    with path.open("w") as file:
        for i in range(n):
            message = {"role": "user", "content": " ".join([f"w{i}"] * words)}
            file.write(json.dumps({"custom_id": f"c{i}", "messages": [message]}) + "\n")
    return path


class Background:
    """A command that runs while the test goes on; killed with all its descendants when the block ends.

    Attributes:
        stdout, stderr: what it said, whole once `wait` has returned.
    """

    def __init__(self, argv: list[str], env: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
        )
        self.pid = self._process.pid
        self._said: dict[str, list[str]] = {"stdout": [], "stderr": []}
        self._readers = [threading.Thread(target=self._read, args=(name,), daemon=True) for name in self._said]
        for reader in self._readers:
            reader.start()

    def _read(self, name: str) -> None:
        with getattr(self._process, name) as stream:
            for line in stream:
                self._said[name].append(line)

    @property
    def stdout(self) -> str:
        return "".join(self._said["stdout"])

    @property
    def stderr(self) -> str:
        return "".join(self._said["stderr"])

    def wait(self, timeout_s: float = 60) -> int:
        """The exit code, once it has ended and everything that it said is here."""
        code = self._process.wait(timeout_s)
        for reader in self._readers:
            reader.join(timeout_s)
        return code

    def wait_for_line(self, text: str) -> str:
        """The first line on stderr that holds `text`."""

        def found() -> list[str]:
            return [line for line in list(self._said["stderr"]) if text in line]

        wait_until_sync(lambda: bool(found()), description=f"stderr says {text!r}", timeout_s=30)
        return found()[0]

    def children(self) -> list[int]:
        """Its direct children, by pid."""
        return [pid for pid, parent, _ in _processes() if parent == self.pid]

    def descendants(self) -> list[int]:
        """Children, their children and so on, by pid."""
        rows, found = _processes(), [self.pid]
        for pid in found:
            found += [child for child, parent, _ in rows if parent == pid]
        return found[1:]

    def matching(self, text: str, among: list[int] | None = None) -> list[int]:
        """Processes whose command line holds `text`, by pid; not the test's own."""
        return [
            pid
            for pid, _, args in _processes()
            if text in args and pid != os.getpid() and (among is None or pid in among)
        ]

    @staticmethod
    def alive(pid: int) -> bool:
        """Whether the process still runs; a dead one that nobody has waited for does not."""
        return any(pid == row[0] for row in _processes())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in (*self.descendants(), self.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.wait()


def _processes() -> list[tuple[int, int, str]]:
    """Pid, parent and command line of every process that is not a zombie."""
    listing = subprocess.run(["ps", "-eo", "pid=,ppid=,stat=,args="], capture_output=True, text=True, check=True)
    rows = [line.split(None, 3) for line in listing.stdout.splitlines()]
    return [(int(r[0]), int(r[1]), r[3]) for r in rows if len(r) == 4 and not r[2].startswith("Z")]
