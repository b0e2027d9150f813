"""A progress bar on stderr: redrawn in place on a terminal and in a notebook, a plain line now and then elsewhere.

Nothing is drawn for the first moment, so that short work stays silent, and nothing at all when `GRISTMILL_PROGRESS` is
``0``.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Self

WIDTH = 28
_QUIET_S = 0.5
_DRAW_EVERY_S = 0.2
_PLAIN_EVERY_S = 10.0


class Bar:
    """One piece of work; `show` is cheap and may be called often. Use as a context manager: the end is always shown."""

    def __init__(self, total: int | None) -> None:
        self.total = total
        self._began_s = time.monotonic()
        self._next_s = self._began_s + (_QUIET_S if _is_live() else _PLAIN_EVERY_S)
        self._shown = False
        self._drawn = 0
        self._live = _is_live()
        self._on = os.environ.get("GRISTMILL_PROGRESS", "1") != "0"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._drawn:
            _write("\n")

    def show(self, done: int, failed: int, note: str = "", *, last: bool = False) -> None:
        """Draw where the work stands, when it is time; `last` draws once more what has been drawn before."""
        now_s = time.monotonic()
        if not self._on or (now_s < self._next_s and not (last and self._shown)):
            return
        self._next_s = now_s + (_DRAW_EVERY_S if self._live else _PLAIN_EVERY_S)
        self._shown = True
        text = self._text(done, failed, now_s - self._began_s, note)
        if self._live:
            _write("\r" + text.ljust(self._drawn))
            self._drawn = len(text)
        else:
            _write(text + "\n")

    def _text(self, done: int, failed: int, took_s: float, note: str) -> str:
        rate = done / took_s if took_s > 0 else 0.0
        parts = [f"{done:,}"]
        if self.total:
            full = WIDTH * min(done, self.total) // self.total
            parts = [f"[{'#' * full}{'.' * (WIDTH - full)}] {done:,}/{self.total:,}"]
        parts.append(f"{rate:,.1f}/s")
        if self.total and rate and done < self.total:
            parts.append(f"{_duration((self.total - done) / rate)} left")
        if failed:
            parts.append(f"{failed:,} failed")
        if note:
            parts.append(note)
        return ", ".join(parts)


def _is_live() -> bool:
    """Whether a carriage return overwrites the line: on a terminal, and in a notebook's output."""
    if sys.stderr is None:
        return False
    in_notebook = type(sys.stderr).__module__.partition(".")[0] == "ipykernel"
    return in_notebook or (sys.stderr.isatty() and os.environ.get("TERM", "") not in {"", "dumb"})


def _write(text: str) -> None:
    if sys.stderr is None:  # a program without a console
        return
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError):  # closed, or a broken pipe: progress is not worth an exception
        return


def _duration(seconds: float) -> str:
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"
