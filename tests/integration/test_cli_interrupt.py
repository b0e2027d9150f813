"""The first signal asks, the second ends at once; nohup is honoured."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from gristmill.cli._interrupt import interrupts
from gristmill.cli._talk import Talk


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_first_signal_sets_the_event(number: signal.Signals, capsys: pytest.CaptureFixture[str]):
    """Ctrl-C, SIGTERM and a lost terminal all ask for an orderly end, and say what a second one would do."""
    with interrupts(lambda: None, Talk("x")) as asked:
        os.kill(os.getpid(), number)
        async with asyncio.timeout(5):
            await asked.wait()
    assert "once more to stop at once" in capsys.readouterr().err


def test_second_signal_kills_and_ends():
    """The second one calls `kill` and ends the process with 130 although its loop waits for something else."""
    script = """
import asyncio, os, signal
from gristmill.cli._interrupt import interrupts
from gristmill.cli._talk import Talk
async def main():
    with interrupts(lambda: print("killed", flush=True), Talk("x")) as asked:
        os.kill(os.getpid(), signal.SIGINT)
        await asked.wait()
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stdout) == (130, "killed\n")
    assert "everything that was finished is kept" in done.stderr


async def test_nohup_is_honoured():
    """Where SIGHUP is ignored it stays ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupts(lambda: None, Talk("x")) as asked:
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGTERM)
            async with asyncio.timeout(5):
                await asked.wait()
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
