"""The processes that `run` and `submit` start: the feeder and the private daemon.

Both lead sessions of their own, so that Ctrl-C in the terminal reaches the command alone, which then stops them
in order. Both end when the command dies: their stdin is a pipe that closes with it. Store URL and key travel by
environment or stdin, never in argv.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping
from pathlib import Path

from gristmill.cli._errors import BadUsageError

LOG_TAIL_LINES = 5


async def start_daemon(
    job: str,
    urls: list[str],
    environment: Mapping[str, str],
    *,
    workers: int | None,
    concurrency: int | None,
    log: Path,
    keep: tuple[int, ...],
    extra: tuple[str, ...] = (),
) -> Process:
    """Start ``gristmilld up`` for one job; its talk goes to the file `log`, and it inherits the descriptors `keep`.

    Raises:
        BadUsageError: the daemon is not installed.
    """
    require_daemon()
    argv = ["up", "--pool", job, "--exit-with-parent", *extra]
    for url in urls:
        argv += ["-e", url]
    for name, value in (("--workers", workers), ("--concurrency", concurrency)):
        if value is not None:
            argv += [name, str(value)]
    with log.open("ab") as file:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "gristmilld",
            *argv,
            stdin=PIPE,
            stdout=file,
            stderr=file,
            env={**os.environ, **environment},
            start_new_session=True,
            pass_fds=keep,
        )


def require_daemon() -> None:
    """Return when the daemon and what it needs are installed.

    Raises:
        BadUsageError: they are not; the message has the pip line.
    """
    if any(importlib.util.find_spec(name) is None for name in ("gristmilld", "aiohttp", "prometheus_client")):
        raise BadUsageError("the daemon is not installed: pip install 'gristmill[daemon]'")


async def launch_feeder(keep: tuple[int, ...] = ()) -> Process:
    """Start a feeder process, which waits for its spec and inherits the descriptors `keep`."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "gristmill.intake.feed_main",
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        start_new_session=True,
        pass_fds=keep,
    )


async def brief(feeder: Process, spec: bytes) -> None:
    """Give a feeder its `spec`, one line of JSON for its stdin, which is left open: its end is our death."""
    assert feeder.stdin is not None
    if feeder.stdin.is_closing():  # it is dead: its exit code tells
        return
    with contextlib.suppress(ConnectionError):
        feeder.stdin.write(spec + b"\n")
        await feeder.stdin.drain()


async def follow(process: Process, tell: Callable[[str], None]) -> tuple[int, bytes]:
    """Pass on each line of the process' stderr until it ends; its exit code and the last line of its stdout."""
    assert process.stdout is not None
    assert process.stderr is not None
    stdout, _ = await asyncio.gather(process.stdout.read(), _pass_on(process.stderr, tell))
    code = await process.wait()
    return code, stdout.strip().rpartition(b"\n")[2]


async def _pass_on(stream: asyncio.StreamReader, tell: Callable[[str], None]) -> None:
    while line := await stream.readline():
        tell(line.decode(errors="replace").rstrip())


async def stop(process: Process, patience_s: float) -> int:
    """SIGTERM, and SIGKILL after `patience_s`; returns the exit code once the process has ended."""
    send(process, signal.SIGTERM)
    try:
        return await asyncio.wait_for(process.wait(), patience_s)
    except TimeoutError:
        send(process, signal.SIGKILL)
        return await process.wait()


def send(process: Process, number: signal.Signals) -> None:
    """Send a signal; nothing happens when the process has ended."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)


def log_tail(log: Path) -> str:
    """The last lines of a child's log, indented."""
    with contextlib.suppress(OSError):
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 16384))
            lines = file.read().decode(errors="replace").splitlines()
        return "".join(f"\n  {line}" for line in lines[-LOG_TAIL_LINES:])
    return ""


def describe_exit(code: int) -> str:
    """``exit code 1`` or ``signal 9``."""
    return f"signal {-code}" if code < 0 else f"exit code {code}"
