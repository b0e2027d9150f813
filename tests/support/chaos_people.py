"""Who uses and runs the product in the chaos tier: commands that are given again whenever they end badly.

A command that was killed, or that met a store which is away, is given again as it was: by a user, or by systemd. What
each attempt said is kept in a log, and every bad end with the last words before it, so that a run can be read later.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import Counter
from collections.abc import Callable
from pathlib import Path

AGAIN_S = 0.4
MOST_REFUSALS = 150


class StuckError(Exception):
    """A command was given very often and never came to a good end."""


class Command:
    """One command line, given until it ends with one of `good`.

    Args:
        argv: the command.
        env: its environment.
        log: gets everything it says on stderr.
        good: exit codes that end it.
        over: whether it is really over; for codes that can also mean that the command broke down.

    Attributes:
        code: the good exit code, or None so far.
        refusals: bad ends that nobody made: exit code and last words, with how often.
    """

    def __init__(
        self,
        argv: list[str],
        env: dict[str, str],
        log: Path,
        good: frozenset[int],
        over: Callable[[], bool] = lambda: True,
    ) -> None:
        self.argv = argv
        self.env = env
        self.log = log
        self.good = good
        self.over = over
        self.code: int | None = None
        self.out = ""
        self.refusals: Counter[str] = Counter()
        self._process: Process | None = None
        self._stopped = False

    async def run(self) -> str:
        """Give the command until it ends well; what the last attempt said on stdout.

        Raises:
            StuckError: it never does.
        """
        while not self._stopped:
            code = await self._once()
            if code in self.good and self.over():
                self.code = code
                return self.out
            if code != -signal.SIGKILL and not self._stopped:
                self.refusals[f"exit {code}: {self.last_words()}"] += 1
                if self.refusals.total() > MOST_REFUSALS:
                    raise StuckError(f"{self.argv[3:5]} ended badly {MOST_REFUSALS} times: {self.last_words()}")
                await asyncio.sleep(AGAIN_S)
        return self.out

    async def _once(self) -> int:
        with self.log.open("ab") as log:
            self._process = process = await asyncio.create_subprocess_exec(
                *self.argv, stdin=DEVNULL, stdout=PIPE, stderr=log, env=self.env, start_new_session=True
            )
        out, _ = await process.communicate()
        self.out = out.decode()
        assert process.returncode is not None
        return process.returncode

    @property
    def pid(self) -> int | None:
        """Of the attempt that runs now."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    def kill(self) -> bool:
        """kill -9 the attempt that runs now; whether there was one."""
        return self.pid is not None and slay(self.pid)

    def kill_child(self) -> bool:
        """kill -9 a child of it; whether there was one."""
        return self.pid is not None and any(slay(child) for child in children(self.pid)[:1])

    async def stop(self, signum: signal.Signals = signal.SIGTERM) -> None:
        """End the attempt that runs now, and give no other."""
        self._stopped = True
        process = self._process
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signum)
            try:
                await asyncio.wait_for(process.wait(), 30)
            except TimeoutError:
                process.kill()
                await process.wait()

    def last_words(self) -> str:
        with contextlib.suppress(OSError):
            with self.log.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
                lines = file.read().decode(errors="replace").strip().splitlines()
            return lines[-1][:300] if lines else ""
        return ""

    def said(self, pattern: str) -> str | None:
        """The first group of the last match of `pattern` in the log."""
        with contextlib.suppress(OSError):
            found = re.findall(pattern, self.log.read_text(errors="replace"), re.MULTILINE)
            return found[-1] if found else None
        return None


def producer(*words: object) -> list[str]:
    """The argv of ``producer WORDS``."""
    return [sys.executable, "-m", "gristmill", *map(str, words)]


def daemon(folder: Path, config: Path, *options: str) -> list[str]:
    """The argv of a daemon whose children leave their pids in `folder`."""
    return [sys.executable, "-m", "tests.support.chaos_daemon", str(folder), "up", "--config", str(config), *options]


def children(pid: int) -> list[int]:
    """The living children of a process."""
    with contextlib.suppress(OSError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def slay(pid: int) -> bool:
    """kill -9; whether it was there."""
    return send(pid, signal.SIGKILL)


def send(pid: int, signum: signal.Signals) -> bool:
    """Send a signal; whether the process was there."""
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        return False
    return True


def watched(folder: Path, role: str) -> dict[str, int]:
    """The living children of daemons that left their pids in `folder`: lease prefix (or daemon id) -> pid."""
    found = {}
    for path in folder.glob(f"{role}.*.pid.*"):
        who, _, pid = path.name.removeprefix(f"{role}.").partition(".pid.")
        if b"tests.support.chaos_daemon" in _command_line(int(pid)):
            found[who] = int(pid)
        elif role != "poison":
            path.unlink(missing_ok=True)
    return found


def _command_line(pid: int) -> bytes:
    """Empty for a process that is dead, whether it was waited for or not."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""
