"""Keeps count of what is worth telling about lines, each line once however often the feeder rewinds over it."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter
from typing import Literal

import msgspec

from gristmill.intake.duplicates import SeenIds, no_room
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
    """Counts refused and duplicate lines; `close` frees the ids.

    Repetitions over a long distance are told by `sum_up`, the others at once. A disk that has no room for the ids
    ends the looking for repetitions, which are only worth a warning here, and nothing else.
    """

    def __init__(self, report: Report, *, on_bad_line: str) -> None:
        self.refused = 0
        self.duplicates = 0
        self.streams_removed = 0
        self._report = report
        self._outcomes = {"skip": "is skipped", "record": "gets a failed result"}  # `fail` ends with the same words
        self._on_bad_line = on_bad_line
        self._ids: SeenIds | None = SeenIds()
        self._next_place = 0
        self._pairs_told = 0

    def see(self, entry: Entry) -> None:
        if entry.place < self._next_place:
            return
        self._next_place = entry.place + 1
        if entry.custom_id is not None and self._ids is not None:
            try:
                first = self._ids.first_line(entry.custom_id, entry.line)
            except OSError as error:
                self._stop_looking(error)
            else:
                if first is not None:
                    self.duplicates += 1
                    self._tell_pairs([(first, entry.line)])
        if entry.refused is not None:
            self._refused(entry)
        if entry.stream_removed:
            self.streams_removed += 1

    def _tell_pairs(self, pairs: Iterable[tuple[int, int]]) -> None:
        for first, second in pairs:
            if self._pairs_told < _SHOWN:
                self._pairs_told += 1
                self._report(Notice("duplicate", f"lines {first} and {second} have the same custom_id; both are sent"))

    def _stop_looking(self, error: OSError) -> None:
        self.close()
        self._report(Notice("duplicate", f"repeated custom_ids are not looked for any more: {no_room(error)}"))

    def _count_far_ones(self) -> None:
        """Count the repetitions over a long distance, and tell the first of them."""
        if self._ids is not None:
            try:
                self._tell_pairs(heapq.nsmallest(_SHOWN, self._counted(self._ids.repeats()), key=itemgetter(1)))
            except OSError as error:
                self._stop_looking(error)

    def _counted(self, pairs: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        for pair in pairs:
            self.duplicates += 1
            yield pair

    def _refused(self, entry: Entry) -> None:
        self.refused += 1
        outcome = self._outcomes.get(self._on_bad_line)
        if self.refused <= _SHOWN and entry.refused is not None and outcome is not None:
            self._report(Notice("bad_line", f"{entry.called} {entry.refused.reason} (it {outcome})"))

    def sum_up(self) -> None:
        """Tell what was not told line by line; once, at the end. Takes a tenth of a second for a million lines."""
        self._count_far_ones()
        if self.duplicates > _SHOWN:
            self._report(Notice("duplicate", f"{self.duplicates:,} lines repeat the custom_id of an earlier line"))
        if self.refused > _SHOWN:
            text = "requests can't be sent: their results tell why, `producer check` does so beforehand"
            self._report(Notice("bad_line", f"{self.refused:,} {text}"))
        if self.streams_removed:
            self._report(
                Notice("stream", f'"stream" was taken out of {self.streams_removed:,} requests: results come whole')
            )

    def close(self) -> None:
        if self._ids is not None:
            self._ids.close()
            self._ids = None
