"""All talk goes to stderr, and data alone to stdout. On a terminal progress is redrawn in place; elsewhere it is one
plain line every 10 s and at each change of phase, without escape codes. NO_COLOR and TERM=dumb are honoured.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Self

from gristmill import stdio
from gristmill.cli._progress import Phase, View

if TYPE_CHECKING:
    from types import TracebackType

    from rich.console import Console
    from rich.live import Live

PLAIN_PERIOD_S = 10.0


def say(text: str) -> None:
    """One line on stderr."""
    with stdio.talking():
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


class Talk:
    """Messages and progress of one command; a context manager that leaves the terminal as it found it."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._live: Live | None = None
        self._console: Console | None = None
        self._told_s = float("-inf")
        self._told_phase: Phase | None = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty() and os.environ.get("TERM", "") not in {"", "dumb"}:
            from rich.console import Console
            from rich.live import Live

            self._console = Console(stderr=True, highlight=False, markup=False, emoji=False)
            self._live = Live(console=self._console, auto_refresh=False, transient=True, redirect_stdout=False)
            with stdio.talking():
                self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.pause()

    def pause(self) -> None:
        """Take the progress away; what is said afterwards stands alone. May be called twice."""
        live, self._live = self._live, None
        if live is not None:
            with stdio.talking():
                live.stop()

    def say(self, text: str) -> None:
        """A message that stays, above the progress."""
        if self._live is not None and self._console is not None:
            with stdio.talking():
                self._console.print(text, soft_wrap=True)
        else:
            say(text)

    def show(self, view: View) -> None:
        """Draw progress; cheap to call several times a second."""
        if self._live is not None and self._console is not None:
            self._draw(self._live, self._console, view)
            return
        now_s = time.monotonic()
        if view.phase != self._told_phase or now_s - self._told_s >= PLAIN_PERIOD_S:
            from gristmill.cli._render import plain_line

            self._told_phase, self._told_s = view.phase, now_s
            say(plain_line(view))

    def _draw(self, live: Live, console: Console, view: View) -> None:
        from rich.console import Group

        from gristmill.cli._render import terminal_lines

        # one column less than the terminal has: some wrap when the last one is written
        with stdio.talking():
            live.update(Group(*terminal_lines(view, self._title, console.width - 1)), refresh=True)
