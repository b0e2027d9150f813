"""Has this custom_id been seen before, and in which line? For hundreds of millions of lines, in bounded memory.

An open-addressing hash table of pairs (64-bit hash, line) in an unlinked temporary file that is mapped into memory: the
kernel may page it out, the process holds nothing. A million ids take 32 MB of file. Two different ids share a hash with
a chance of one in 37 million for a million ids; it costs a wrong warning, and with `strict` a second look decides.

A feeder that rewinds reads lines again: a line is no duplicate of itself.
"""

from __future__ import annotations

import mmap
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from gristmill.intake.errors import InputError
from gristmill.intake.readers import Line, open_lines

_PAIR_BYTES = 16
_MIN_SLOTS = 1 << 12
_MASK64 = (1 << 64) - 1
_FULL_NUMERATOR, _FULL_DENOMINATOR = 3, 5


class SeenIds:
    """`first_line(custom_id, line)` per line; close it, or let it go."""

    def __init__(self, expected: int = 0, folder: str | None = None) -> None:
        self._folder = folder
        slots = _MIN_SLOTS
        while slots * _FULL_NUMERATOR < expected * _FULL_DENOMINATOR:
            slots *= 2
        self._count = 0
        self._open(slots)

    def _open(self, slots: int) -> None:
        self._mask = slots - 1
        self._room = slots * _FULL_NUMERATOR // _FULL_DENOMINATOR
        with tempfile.TemporaryFile(dir=self._folder, prefix="gristmill-ids-") as file:
            file.truncate(slots * _PAIR_BYTES)
            self._map = mmap.mmap(file.fileno(), slots * _PAIR_BYTES)
        self._table = memoryview(self._map).cast("Q")

    def first_line(self, custom_id: str, line: int) -> int | None:
        """The line before `line` that had this id first, else None (and `line` is remembered)."""
        key = (hash(custom_id) & _MASK64) or 1  # 0 marks a free slot
        table, mask = self._table, self._mask
        slot = key & mask
        while (found := table[slot + slot]) != 0:
            if found == key:
                first = table[slot + slot + 1]
                return first if first < line else None
            slot = (slot + 1) & mask
        table[slot + slot] = key
        table[slot + slot + 1] = line
        self._count += 1
        if self._count > self._room:
            self._grow()
        return None

    def _grow(self) -> None:
        old_map, old = self._map, self._table
        self._open((self._mask + 1) * 2)
        table, mask = self._table, self._mask
        for at in range(0, len(old), 2):
            key = old[at]
            if key:
                slot = key & mask
                while table[slot + slot]:
                    slot = (slot + 1) & mask
                table[slot + slot] = key
                table[slot + slot + 1] = old[at + 1]
        old.release()
        old_map.close()

    def close(self) -> None:
        self._table.release()
        self._map.close()


class _Ids(msgspec.Struct):
    custom_id: Any = None
    id: Any = None


_ids_decoder = msgspec.json.Decoder(_Ids)


def require_unique(path: str | Path, *, max_line_bytes: int, limit: int | None = None, arrays: bool = False) -> None:
    """Read the whole input once (some microseconds a line) and return when no custom_id occurs twice.

    Raises:
        InputError: one does, named with both line numbers; or the input can't be read.
    """
    seen = SeenIds(Path(path).stat().st_size // 500)
    try:
        for place, line in enumerate(open_lines(path, max_line_bytes=max_line_bytes, arrays=arrays)):
            if limit is not None and place >= limit:
                return
            custom_id = _id_of(line)
            first = None if custom_id is None else seen.first_line(custom_id, line.number)
            if first is not None and _same_id(path, first, custom_id, max_line_bytes, arrays=arrays):
                raise InputError(
                    f"{path}: lines {first} and {line.number} have the same custom_id: make them unique, "
                    "or leave out --strict"
                )
    finally:
        seen.close()


def _id_of(line: Line) -> str | None:
    """As `normalise` finds it; what it would refuse has none here."""
    if line.problem is not None:
        return None
    try:
        ids = _ids_decoder.decode(line.data)
    except (msgspec.MsgspecError, RecursionError):
        return None
    value = ids.id if ids.custom_id is None else ids.custom_id
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else None


def _same_id(path: str | Path, number: int, custom_id: str | None, max_line_bytes: int, *, arrays: bool) -> bool:
    """Whether line `number` really has this id: two ids can share a hash."""
    for line in open_lines(path, max_line_bytes=max_line_bytes, arrays=arrays):
        if line.number >= number:
            return _id_of(line) == custom_id
    return False
