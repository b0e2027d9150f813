"""Logging: one line per event on stderr, for people or for machines.

Every process of the daemon calls `set_up` once, after its fork, with its own name. Messages are whole sentences;
what a machine wants to filter by goes into `extra={"fields": {...}}`. No prompt, body, picture or key is ever logged:
an exception is logged by its type and text alone, and a traceback only at level debug.
"""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Literal

import msgspec

LogFormat = Literal["text", "json"]


def set_up(process: str, *, log_format: LogFormat = "text", level: str = "info") -> None:
    """Send this process's records to stderr; a second call replaces the first.

    Args:
        process: which process speaks, e.g. ``worker-0``.
        log_format: ``text`` or ``json``.
        level: the least severity that is written: debug, info, warning or error.
    """
    logging.raiseExceptions = False  # a closed stderr must not stop the work
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter(process) if log_format == "json" else _TextFormatter(process))
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)  # of libraries
    logging.getLogger("gristmilld").setLevel(level.upper())
    logging.getLogger("gristmill").setLevel(level.upper())


def fields(**values: str | float | bool | None) -> dict[str, object]:
    """`extra` of a log call: ``log.info("...", extra=fields(slot=1))``."""
    return {"fields": values}


class _Formatter(logging.Formatter):
    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def _time(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def _fields(self, record: logging.LogRecord) -> dict[str, object]:
        values = getattr(record, "fields", None)
        return values if isinstance(values, dict) else {}

    def _error(self, record: logging.LogRecord) -> str | None:
        """The exception as type and text; its traceback only at debug (its lines can show what was in hand)."""
        if not record.exc_info or record.exc_info[1] is None:
            return None
        if logging.getLogger("gristmilld").isEnabledFor(logging.DEBUG):
            return self.formatException(record.exc_info)
        error = record.exc_info[1]
        return f"{type(error).__name__}: {error}"


class _TextFormatter(_Formatter):
    def format(self, record: logging.LogRecord) -> str:
        parts = [self._time(record), record.levelname.lower(), self._process, record.getMessage()]
        parts += [f"{name}={value}" for name, value in self._fields(record).items()]
        line = " ".join(parts).replace("\n", "\\n")  # one event is one line: nobody can forge another
        error = self._error(record)
        return f"{line}: {error}" if error else line


class _JsonFormatter(_Formatter):
    def format(self, record: logging.LogRecord) -> str:
        event: dict[str, object] = {
            "time": self._time(record),
            "level": record.levelname.lower(),
            "process": self._process,
            "logger": record.name,
            "message": record.getMessage(),
            **self._fields(record),
        }
        error = self._error(record)
        if error:
            event["error"] = error
        return msgspec.json.encode(event).decode()
