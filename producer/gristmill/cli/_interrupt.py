"""Ctrl-C and SIGTERM while a job runs: the first asks for an orderly end, the second ends at once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterator

from gristmill.cli._errors import ExitCode

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def interrupts(kill: Callable[[], None]) -> Iterator[asyncio.Event]:
    """An event that the first signal sets; a second one calls `kill`, then ends this process with 130."""
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()

    def heard() -> None:
        if asked.is_set():
            kill()
            os._exit(ExitCode.INTERRUPTED)
        asked.set()

    for number in SIGNALS:
        loop.add_signal_handler(number, heard)
    try:
        yield asked
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
