"""What a run passes on of its private daemon's log."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from tests.support.clock import ManualClock
from tests.support.wait import wait_until

from gristmill.cli import _daemonlog
from gristmill.cli._daemonlog import QUIET_S, DaemonLog
from gristmilld.logs import LogFormat, set_up


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes lines as the daemon's processes do: ``log("supervisor", "warning", "...")``."""
    root, before = logging.getLogger(), logging.getLogger().handlers[:]
    path = tmp_path / "daemon.log"

    def write(process: str, level: str, text: str, log_format: LogFormat = "text") -> None:
        with path.open("a") as file:
            monkeypatch.setattr("sys.stderr", file)
            set_up(process, log_format=log_format, level="debug")
            logging.getLogger("gristmilld").log(logging.getLevelNamesMapping()[level.upper()], text)

    yield write
    root.handlers[:] = before


def test_only_the_supervisors_warnings_are_told(tmp_path: Path, log):
    """Not what others say, not what it says by the way, and not what was there before; in either format."""
    log("supervisor", "error", "long ago")
    said: list[str] = []
    clock = ManualClock()
    reader = DaemonLog(tmp_path / "daemon.log", said.append, clock)
    log("supervisor", "info", "stopping")
    log("worker-0", "warning", "the store does not answer")
    for log_format in ("text", "json"):
        log("supervisor", "warning", f"worker-0 crashed, in {log_format}", log_format)
        log("worker-0", "error", "no concern of ours", log_format)
        reader.look()
        clock.advance(QUIET_S)
    assert said == ["worker-0 crashed, in text", "worker-0 crashed, in json"]


def test_many_warnings_become_one_now_and_then(tmp_path: Path, log):
    """The first is told at once; of the others the last, with their number, once it has been quiet for long enough."""
    said: list[str] = []
    clock = ManualClock()
    reader = DaemonLog(tmp_path / "daemon.log", said.append, clock)
    reader.look()
    for number in range(5):
        log("supervisor", "warning", f"crash {number}")
        reader.look()
        clock.advance(0.1)
    assert said == ["crash 0"]
    clock.advance(QUIET_S)
    reader.look()
    reader.look()
    assert said == ["crash 0", "crash 4 (the last of 4 such warnings)"]


def test_a_line_is_told_when_it_is_whole(tmp_path: Path):
    """Half a line waits for its end."""
    path, said = tmp_path / "daemon.log", []
    reader = DaemonLog(path, said.append)
    path.write_bytes(b"2026-01-01T00:00:00.000Z warning supervisor worker-0 cra")
    reader.look()
    assert said == []
    with path.open("ab") as file:
        file.write(b"shed\n")
    reader.look()
    assert said == ["worker-0 crashed"]


async def test_what_was_held_back_is_told_at_the_end(tmp_path: Path, log, monkeypatch: pytest.MonkeyPatch):
    """A run that ends within the quiet time tells it all the same."""
    monkeypatch.setattr(_daemonlog, "PERIOD_S", 0.001)
    said: list[str] = []
    following = asyncio.create_task(DaemonLog(tmp_path / "daemon.log", said.append).follow())
    log("supervisor", "warning", "crash 1")
    await wait_until(lambda: said == ["crash 1"], description="the first is told")
    log("supervisor", "warning", "crash 2")
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    assert said == ["crash 1", "crash 2"]
