"""Keeps count of what is worth telling about lines, each line once however often the feeder rewinds over it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from gristmill.intake.duplicates import SeenIds
from gristmill.intake.encode import Entry

_SHOWN = 5
"""Of each kind so many are told one by one; the rest as a number at the end."""


class Notice(msgspec.Struct, frozen=True):
    """One sentence for the user.

    Attributes:
        kind: `duplicate`, `bad_line`, `stream`: about the input; `waiting`, `going_on`, `rewound`: about the work.
        text: what happened, without prompt, body or picture bytes.
    """

    kind: Literal["duplicate", "bad_line", "stream", "waiting", "going_on", "rewound"]
    text: str


Report = Callable[[Notice], None]


class LinesSeen:
    """Counts refused and duplicate lines; `close` frees the table of ids."""

    def __init__(self, report: Report, *, expected_lines: int, on_bad_line: str) -> None:
        self.refused = 0
        self.duplicates = 0
        self.streams_removed = 0
        self._report = report
        self._outcomes = {"skip": "is skipped", "record": "gets a failed result"}  # `fail` ends with the same words
        self._on_bad_line = on_bad_line
        self._ids = SeenIds(expected_lines)
        self._next_place = 0

    def see(self, entry: Entry) -> None:
        if entry.place < self._next_place:
            return
        self._next_place = entry.place + 1
        if entry.custom_id is not None:
            first = self._ids.first_line(entry.custom_id, entry.line)
            if first is not None:
                self._duplicate(first, entry.line)
        if entry.refused is not None:
            self._refused(entry)
        if entry.stream_removed:
            self.streams_removed += 1

    def _duplicate(self, first: int, second: int) -> None:
        self.duplicates += 1
        if self.duplicates <= _SHOWN:
            self._report(Notice("duplicate", f"lines {first} and {second} have the same custom_id; both are sent"))

    def _refused(self, entry: Entry) -> None:
        self.refused += 1
        outcome = self._outcomes.get(self._on_bad_line)
        if self.refused <= _SHOWN and entry.refused is not None and outcome is not None:
            self._report(Notice("bad_line", f"line {entry.line} {entry.refused.reason} (it {outcome})"))

    def sum_up(self) -> None:
        """Tell what was not told line by line."""
        if self.duplicates > _SHOWN:
            self._report(Notice("duplicate", f"{self.duplicates:,} lines repeat the custom_id of an earlier line"))
        if self.refused > _SHOWN:
            self._report(Notice("bad_line", f"{self.refused:,} lines can't be sent: `producer check` shows them"))
        if self.streams_removed:
            self._report(
                Notice("stream", f'"stream" was taken out of {self.streams_removed:,} lines: results come whole')
            )

    def close(self) -> None:
        self._ids.close()
