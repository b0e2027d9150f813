"""`producer top` from end to end: looks at the store, and draws on the whole terminal or prints once.

On a terminal it takes the alternate screen and gives it back however it ends; q, Ctrl-C and SIGTERM end it with exit
code 0. Between two looks it rests for a second, and for longer when a look took long: a look never takes more than a
fifth of the time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import termios
import tty
from collections.abc import Iterator

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from gristmill import stdio
from gristmill._version import __version__
from gristmill.cli._options import StoreOptions
from gristmill.cli._overview import Lookout, Overview
from gristmill.cli._progress import View
from gristmill.cli._screen import Rates, screen
from gristmill.cli._session import Store, open_store
from gristmill.contract.lifecycle import JobState
from gristmill.embedded import EmbeddedStoreError
from gristmill.queue.store import OUTAGES, read_infos, store_info

PERIOD_S = 1.0
MOST_ONCE = 200
"""Jobs in the table of ``--once``."""
_QUIT = {b"q", b"Q", b"\x03", b"\x1b"}


async def top(options: StoreOptions, *, once: bool) -> int:
    """Show the store of `options`; the exit code, 0."""
    async with open_store(options) as store:
        info = store_info(list((await read_infos(store.redis)).values()))
        title = f"gristmill {__version__}   {info.product} {info.version} at {store.identity}"
        if once or not _has_terminal():
            await _print(store, title)
        else:
            await _Top(store, title).run()
    return 0


def _has_terminal() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM", "") not in {"", "dumb"}


async def _print(store: Store, title: str) -> None:
    """One table; where something runs, after a second look, since a rate takes two."""
    lookout, rates = Lookout(store.redis), Rates()
    seen = await lookout.look(MOST_ONCE)
    views = rates.views(seen)
    if any(one.snapshot.state is JobState.RUNNING for one in seen.jobs):
        await asyncio.sleep(PERIOD_S)
        seen = await lookout.look(MOST_ONCE)
        views = rates.views(seen)
    for line in screen(seen, views, title, width=None, height=None):
        stdio.put(line.plain.rstrip())


class _Top:
    """The live view of one store."""

    def __init__(self, store: Store, title: str) -> None:
        self._store = store
        self._title = title
        self._console = Console(highlight=False, markup=False, emoji=False)
        self._lookout = Lookout(store.redis)
        self._rates = Rates()
        self._stop = asyncio.Event()
        self._resized = asyncio.Event()
        self._last = Overview(at_s=0.0)
        self._views: dict[str, View] = {}
        self._error = ""

    async def run(self) -> None:
        """Look and draw until told to stop."""
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(signum, self._stop.set)
        loop.add_signal_handler(signal.SIGWINCH, self._resized.set)
        live = Live(
            console=self._console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )
        with _keys(self._stop), live:
            drawing = asyncio.create_task(self._draw_for_ever(live))
            stopping = asyncio.create_task(self._stop.wait())
            await asyncio.wait({drawing, stopping}, return_when=asyncio.FIRST_COMPLETED)
            for task in (drawing, stopping):
                task.cancel()
            results = await asyncio.gather(drawing, stopping, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def _draw_for_ever(self, live: Live) -> None:
        loop = asyncio.get_running_loop()
        while True:
            begun_s = loop.time()
            await self._look()
            took_s = loop.time() - begun_s
            rest_until_s = loop.time() + max(PERIOD_S - took_s, 4 * took_s)
            self._draw(live)
            while (rest_s := rest_until_s - loop.time()) > 0:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._resized.wait(), rest_s)
                    self._resized.clear()
                    self._draw(live)

    async def _look(self) -> None:
        """A new look, or the old one and why there is no newer."""
        try:
            self._last, self._error = await self._lookout.look(self._console.size.height), ""
            self._views = self._rates.views(self._last)
        except OUTAGES as error:
            self._error = f"the store does not answer ({type(error).__name__}); trying again"
            if self._store.embedded is not None:
                with contextlib.suppress(EmbeddedStoreError):
                    await asyncio.to_thread(self._store.embedded.revive)

    def _draw(self, live: Live) -> None:
        width, height = self._console.size
        lines = screen(self._last, self._views, self._title, width=width - 1, height=height - 1, error=self._error)
        lines += [Text()] * (height - 1 - len(lines)) + [Text("q quits", "dim")]
        live.update(Group(*lines), refresh=True)


@contextlib.contextmanager
def _keys(stop: asyncio.Event) -> Iterator[None]:
    """Inside, a press of q sets `stop`; afterwards the terminal's input is as it was. Nothing without a terminal."""
    if not sys.stdin.isatty():
        yield
        return
    fd, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    before = termios.tcgetattr(fd)

    def pressed() -> None:
        typed = os.read(fd, 64)
        if not typed or (typed[:1] in _QUIT and len(typed) == 1):
            stop.set()

    tty.setcbreak(fd)
    loop.add_reader(fd, pressed)
    try:
        yield
    finally:
        loop.remove_reader(fd)
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
