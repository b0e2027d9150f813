"""Has this custom_id been seen before, and in which line? For hundreds of millions of lines, in bounded memory.

The latest `AT_HAND` ids are kept in memory as 64-bit hashes, each with the first line that has it. When they are full
they go to an unlinked temporary file, sorted into `PARTS` parts by their lowest bits, and memory begins anew. So an id
that comes back soon is told at once; one that comes back from afar is told by `repeats`, which reads the file part by
part and holds one part of it. Each line costs 16 bytes of file, written and read once; small inputs have no file.

Two different ids share a hash with a chance of one in 37 million for a million ids; it costs a wrong warning, and with
`strict` a second look decides.
"""

from __future__ import annotations

import os
import tempfile
from array import array
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from gristmill.intake.errors import InputError
from gristmill.intake.readers import Line, open_lines

AT_HAND = 1 << 15
PARTS = 256
_PART_BITS = 8
_WORD_BYTES = 8
_ROOMY_FOLDER = "/var/tmp"  # noqa: S108  the file is made by tempfile, unlinked and ours alone


class SeenIds:
    """`first_line(custom_id, line)` once for each line in turn, then `repeats`; close it at the end.

    Args:
        at_hand: how many ids are kept in memory.

    Raises:
        OSError: by `first_line` and `repeats`, the file can't be written or read: the disk is full, most likely.
    """

    def __init__(self, *, at_hand: int = AT_HAND) -> None:
        self._most = at_hand
        self._recent: dict[int, int] = {}
        self._file: BinaryIO | None = None
        self._ends: list[array[int]] = []

    def first_line(self, custom_id: str, line: int) -> int | None:
        """A line before `line` that has this id, if there is one among the latest ids; `line` is remembered."""
        recent = self._recent
        first = recent.setdefault(hash(custom_id), line)
        if first != line:
            return first
        if len(recent) >= self._most:
            self._put_away()
        return None

    def repeats(self) -> Iterator[tuple[int, int]]:
        """The first and the later line of each repetition that `first_line` could not see, in no order."""
        if self._file is None:
            return
        self._put_away()
        for part in range(PARTS):
            keys, lines = self._part(part)
            slices = len(keys) // AT_HAND + 1
            for one in range(slices):
                firsts: dict[int, int] = {}
                for key, line in zip(keys, lines, strict=True):
                    if slices == 1 or (key >> _PART_BITS) % slices == one:
                        first = firsts.setdefault(key, line)
                        if first < line:
                            yield first, line

    def _put_away(self) -> None:
        """Append what is at hand to the file, part after part: the keys of each, then their lines."""
        parts: list[list[int]] = [[] for _ in range(PARTS)]
        for key in self._recent:
            parts[key & (PARTS - 1)].append(key)
        line_of = self._recent.__getitem__
        if self._file is None:
            folder = _folder()
            self._file = tempfile.TemporaryFile(dir=folder, prefix="gristmill-ids-", buffering=0)  # noqa: SIM115  closed by `close`
        start = self._ends[-1][-1] if self._ends else 0
        data = b"".join(array("q", words).tobytes() for part in parts for words in (part, map(line_of, part)))
        _write(self._file, data)
        self._ends.append(array("Q", accumulate((2 * len(part) for part in parts), initial=start)))
        self._recent = {}

    def _part(self, part: int) -> tuple[array[int], array[int]]:
        """Keys and lines of one part, in the order in which they came."""
        assert self._file is not None
        keys, lines = array("q"), array("q")
        for ends in self._ends:
            start, end = ends[part], ends[part + 1]
            words = array("q", _read(self._file, start * _WORD_BYTES, (end - start) * _WORD_BYTES))
            keys += words[: len(words) // 2]
            lines += words[len(words) // 2 :]
        return keys, lines

    def close(self) -> None:
        """Free memory and file; may be called twice, also while another thread reads `repeats`, which fails then."""
        self._recent = {}
        if self._file is not None:
            self._file.close()


def _folder() -> str | None:
    """The folder for large temporary files, /var/tmp since /tmp is in memory on many machines; None is TMPDIR."""
    return None if os.environ.get("TMPDIR") or not os.access(_ROOMY_FOLDER, os.W_OK) else _ROOMY_FOLDER


def _write(file: BinaryIO, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def _read(file: BinaryIO, offset: int, count: int) -> bytes:
    data = os.pread(file.fileno(), count, offset)
    if len(data) != count:
        raise OSError(f"{count} bytes were written, {len(data)} can be read")
    return data


class _Ids(msgspec.Struct):
    custom_id: Any = None
    id: Any = None


_ids_decoder = msgspec.json.Decoder(_Ids)


def require_unique(path: str | Path, *, max_line_bytes: int, limit: int | None = None, arrays: bool = False) -> None:
    """Read the whole input once (some microseconds a line) and return when no custom_id occurs twice.

    Raises:
        InputError: one does, named with both line numbers; or the input can't be read, or not looked through.
    """
    seen = SeenIds()
    try:
        for first, later in _suspects(seen, path, max_line_bytes, limit, arrays=arrays):
            if _same_id(path, first, later, max_line_bytes, arrays=arrays):
                raise InputError(
                    f"{path}: lines {first} and {later} have the same custom_id: "
                    "make them unique, or leave out --strict"
                )
    except OSError as error:
        raise InputError(f"repeated custom_ids of {path} can't be looked for: {no_room(error)}") from error
    finally:
        seen.close()


def no_room(error: OSError) -> str:
    """What stands in the way of `SeenIds`, and what to do."""
    where = _folder() or tempfile.gettempdir()
    return f"{error.strerror or error} in {where}: free 16 bytes for each line there, or set TMPDIR to a roomier folder"


def _suspects(
    seen: SeenIds, path: str | Path, max_line_bytes: int, limit: int | None, *, arrays: bool
) -> Iterator[tuple[int, int]]:
    """Pairs of lines that seem to have the same id."""
    for place, line in enumerate(open_lines(path, max_line_bytes=max_line_bytes, arrays=arrays)):
        if limit is not None and place >= limit:
            break
        custom_id = _id_of(line)
        first = None if custom_id is None else seen.first_line(custom_id, line.number)
        if first is not None:
            yield first, line.number
    yield from seen.repeats()


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


def _same_id(path: str | Path, first: int, later: int, max_line_bytes: int, *, arrays: bool) -> bool:
    """Whether both lines really have the same id: two ids can share a hash."""
    found: list[str | None] = []
    for line in open_lines(path, max_line_bytes=max_line_bytes, arrays=arrays):
        if line.number in (first, later):
            found.append(_id_of(line))
        if line.number >= later:
            break
    return len(found) == 2 and found[0] == found[1]
