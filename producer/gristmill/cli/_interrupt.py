"""Ctrl-C, SIGTERM and a lost terminal while a job runs: the first asks for an orderly end, the second ends at once.

Under `nohup` the loss of the terminal is no reason to end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterator

from gristmill.cli._errors import ExitCode
from gristmill.cli._talk import Talk, say

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _wanted() -> list[signal.Signals]:
    nohup = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [number for number in SIGNALS if number != signal.SIGHUP or not nohup]


@contextlib.contextmanager
def interrupts(kill: Callable[[], None], talk: Talk) -> Iterator[asyncio.Event]:
    """An event that the first signal sets; a second one calls `kill`, then ends this process with 130.

    `talk` tells what each of them does.
    """
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()

    def heard() -> None:
        if asked.is_set():
            kill()
            talk.pause()
            say("stopped at once; everything that was finished is kept, and the same command goes on from there")
            os._exit(ExitCode.INTERRUPTED)
        asked.set()
        talk.say("stopping: requests in flight have a moment to end; once more to stop at once")

    numbers = _wanted()
    for number in numbers:
        loop.add_signal_handler(number, heard)
    try:
        yield asked
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
