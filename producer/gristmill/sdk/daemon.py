"""The private daemon: started by exec, kept alive, stopped at once when the client closes.

It leads a session of its own, so that Ctrl-C in a terminal reaches the caller alone. It ends when the caller
does, however that ends: its stdin is a pipe that closes with the caller. Then, or when it is stopped, nobody waits for
what is in flight any more, so it drains for a moment only. Store URL and key travel by environment, never in argv.

A daemon that dies is started again. It is given up when it dies again and again without having worked for a while, or
refuses its settings.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from gristmill.sdk.errors import DaemonError, SetupError
from gristmill.sdk.home import Home

DRAIN_S = 1
"""Seconds; a whole number, for the settings file."""

SPARE_FILES = 128
_REFUSALS = frozenset({2, 3})
_MAX_DEATHS = 3
_HEALTHY_S = 60.0
_LOOK_S = 0.2
_STOP_S = 5.0
_LOG_TAIL_LINES = 5


class DaemonOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a private daemon works; `key` is sent to `urls` alone."""

    urls: list[str]
    key: str | None
    pool: str
    workers: int | None
    concurrency: int | None

    def __repr__(self) -> str:
        return f"DaemonOptions(pool={self.pool!r}, urls={self.urls})"


def require_daemon() -> None:
    """Return when the daemon and what it needs are installed.

    Raises:
        SetupError: they are not; the message has the pip line.
    """
    if any(importlib.util.find_spec(name) is None for name in ("gristmilld", "aiohttp", "prometheus_client")):
        raise SetupError("the daemon is not installed: pip install 'gristmill[all]'")


def fitting_concurrency(wanted: int) -> int:
    """`wanted` requests in flight per worker, or as many as the limit of open files allows."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return wanted if hard == resource.RLIM_INFINITY else max(1, min(wanted, hard - SPARE_FILES))


class Daemon:
    """One private daemon over a private store. `start` and `stop` block for moments; `mind` runs until it is given up.

    `stop` may be called twice, or before `start`.
    """

    def __init__(self, home: Home, options: DaemonOptions) -> None:
        assert home.folder is not None
        self._home = home
        self._options = options
        self._folder: Path = home.folder
        self._process: subprocess.Popen[bytes] | None = None
        self._started_s = 0.0
        self._deaths = 0
        self._pid = os.getpid()

    @property
    def log(self) -> Path:
        """What it and its workers say."""
        return self._folder / "daemon.log"

    def start(self) -> None:
        """Start it; returns before it is up."""
        config = self._folder / "daemon.toml"
        config.write_text(f"drain_s = {DRAIN_S}\n", encoding="utf-8")
        options = self._options
        argv = [sys.executable, "-m", "gristmilld", "up", "--pool", options.pool, "--exit-with-parent"]
        argv += ["--config", str(config), "--state-dir", str(self._folder), "--allow-root", "/", "--no-metrics"]
        for url in options.urls:
            argv += ["-e", url]
        for name, value in (("--workers", options.workers), ("--concurrency", options.concurrency)):
            if value is not None:
                argv += [name, str(value)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=self._environment(),
                start_new_session=True,
                pass_fds=self._home.descriptors,
                cwd="/",
            )
        self._started_s = time.monotonic()

    def _environment(self) -> dict[str, str]:
        environment = {**os.environ, "GRISTMILL_REDIS_URL": self._home.url}
        environment.pop("OPENAI_API_KEY", None)
        if self._options.key:
            environment["OPENAI_API_KEY"] = self._options.key
        return environment

    async def mind(self, died: Callable[[], Awaitable[None]]) -> None:
        """Start it again whenever it dies; `died` is called before, when its workers have ended, too.

        Raises:
            DaemonError: it is given up; the message has the end of its log.
        """
        while True:
            await asyncio.sleep(_LOOK_S)
            code = None if self._process is None else self._process.poll()
            if code is None:
                continue
            healthy = time.monotonic() - self._started_s > _HEALTHY_S
            self._deaths = 1 if healthy else self._deaths + 1
            if code in _REFUSALS or self._deaths >= _MAX_DEATHS:
                how = f"signal {-code}" if code < 0 else f"exit code {code}"
                raise DaemonError(f"the daemon ended ({how}){self._log_tail()}")
            self._close_pipe()
            await died()
            self.start()

    def stop(self) -> None:
        """End it and its workers; returns when they have ended."""
        process, self._process = self._process, None
        if process is None or os.getpid() != self._pid:
            return
        try:
            # the second one says: put everything back at once
            for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
                if process.poll() is not None:
                    break
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(DRAIN_S if number == signal.SIGTERM else _STOP_S)
        finally:
            if process.stdin is not None:
                process.stdin.close()

    def _close_pipe(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    def _log_tail(self) -> str:
        with contextlib.suppress(OSError):
            lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
            return "".join(f"\n  {line}" for line in lines[-_LOG_TAIL_LINES:])
        return ""
