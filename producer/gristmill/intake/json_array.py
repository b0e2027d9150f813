"""A file that is one JSON array, as a stream of its elements: the array is never in memory, only one element is.

Elements are cut by counting brackets outside of strings; what stands between two brackets is somebody else's to judge.
An element beyond the cap is skipped over in pieces and handed out as a problem, as a line is. Offsets are those of the
byte behind an element, so a cursor stands between two of them.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import NamedTuple

_CHUNK_BYTES = 1 << 20
_HEAD_BYTES = 64 << 10
_BOM = b"\xef\xbb\xbf"
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|["{}\[\]]', re.DOTALL)
"""A whole string, a bracket, or the quote of a string that is not whole yet. Possessive: nothing is tried twice."""
_IN_STRING = re.compile(rb'\\.|"', re.DOTALL)
_TOKEN_OR_QUOTE = re.compile(rb'["{}\[\]]')
_SCALAR = re.compile(rb"[^,\]\s]+")
_BLANKS = re.compile(rb"[ \t\r\n]*+")
_CUT = "is cut short: its array does not end"


class ArrayError(ValueError):
    """The file is no whole JSON array; the text is a clause that follows its name."""


class Element(NamedTuple):
    """One element; `data` is only its first 64 KiB when it is `too_long`."""

    offset_after: int
    data: bytes
    too_long: bool = False


def begins_array(head: bytes) -> bool:
    """Whether a file that begins with `head` is a JSON array."""
    return head.removeprefix(_BOM).lstrip(b" \t\r\n")[:1] == b"["


def elements(stream: io.BufferedReader, offset: int, cap: int) -> Iterator[Element]:
    """The elements of the array from `offset` on: the start of the file, or the end of an element.

    Raises:
        ArrayError: what stands between two elements is no comma, or the array does not end.
    """
    reader = _Reader(stream, offset, cap)
    if offset == 0:
        reader.enter()
    elif not reader.more():
        return
    while (element := reader.element()) is not None:
        yield element
        if not reader.more():
            break


class _Reader:
    """A window on the stream: `_buffer` begins at byte `_base` of it, and everything before `_at` is done with."""

    def __init__(self, stream: io.BufferedReader, offset: int, cap: int) -> None:
        self._stream = stream
        self._cap = cap
        self._buffer = b""
        self._base = offset
        self._at = 0

    def enter(self) -> None:
        """Past the opening bracket."""
        while len(self._buffer) < len(_BOM) and self._read():
            pass
        if self._buffer.startswith(_BOM):
            self._at = len(_BOM)
        if self._next() != b"[":
            raise ArrayError("is no JSON array")
        self._at += 1

    def more(self) -> bool:
        """Past the comma behind an element; False at the end of the array."""
        char = self._next()
        if char == b"]":
            return False
        if char == b"":
            raise ArrayError(_CUT)
        if char != b",":
            raise ArrayError(f"is no JSON array: there is no comma at byte {self._base + self._at}")
        self._at += 1
        return True

    def element(self) -> Element | None:
        """The next one; None at the end of the array."""
        char = self._next()
        if char == b"]":
            return None
        if char == b"":
            raise ArrayError(_CUT)
        if char in b"{[":
            return self._bracketed()
        return self._scalar()

    # -- one element

    def _bracketed(self) -> Element:
        depth, at = 0, self._at
        while True:
            found = _TOKEN.search(self._buffer, at)
            token = b"" if found is None else found[0]
            if found is None or token == b'"':  # what is missing may come with the next piece
                at = len(self._buffer) if found is None else found.start()
                if at - self._at > self._cap or len(self._buffer) - self._at > self._cap:
                    return self._skipped(depth, at)
                at -= self._at
                self._require(len(self._buffer) - self._at)
                continue
            at = found.end()
            depth += (token in b"{[") - (token in b"}]")
            if depth == 0:
                return self._taken(at)

    def _taken(self, end: int) -> Element:
        data = self._buffer[self._at : end]
        self._at = end
        too_long = len(data) > self._cap
        return Element(self._base + end, data[:_HEAD_BYTES] if too_long else data, too_long)

    def _skipped(self, depth: int, at: int) -> Element:
        """Go on to the element's end, holding only a piece of it; `at` is outside of strings."""
        head = self._buffer[self._at : self._at + _HEAD_BYTES]
        in_string = False
        self._at = at
        while True:
            found = (_IN_STRING if in_string else _TOKEN_OR_QUOTE).search(self._buffer, self._at)
            if found is None:
                torn_escape = in_string and self._at < len(self._buffer) and self._buffer.endswith(b"\\")
                self._at = len(self._buffer) - torn_escape
                self._require()
                continue
            self._at, token = found.end(), found[0]
            if token == b'"':
                in_string = not in_string
            elif not in_string:
                depth += 1 if token in b"{[" else -1
                if depth == 0:
                    return Element(self._base + self._at, head, too_long=True)

    def _scalar(self) -> Element:
        """A number, a word or a string: never a row, but it has its place."""
        pattern = _TOKEN if self._buffer[self._at : self._at + 1] == b'"' else _SCALAR
        while True:
            found = pattern.match(self._buffer, self._at)
            if found is not None and found[0] != b'"' and found.end() < len(self._buffer):
                return self._taken(found.end())
            held = len(self._buffer) - self._at
            if held > self._cap:
                raise ArrayError(f"holds a value of more than {self._cap:,} bytes that is no object")
            self._require(held)

    # -- the window

    def _next(self) -> bytes:
        """The next character that is no blank; empty at the end of the file."""
        while True:
            found = _BLANKS.match(self._buffer, self._at)
            assert found is not None
            self._at = found.end()
            if self._at < len(self._buffer):
                return self._buffer[self._at : self._at + 1]
            if not self._read():
                return b""

    def _require(self, least: int = 0) -> None:
        if not self._read(least):
            raise ArrayError(_CUT)

    def _read(self, least: int = 0) -> bool:
        """Drop what is done with and read on, at least as much as is held, so that a long element costs no square."""
        piece = self._stream.read(max(_CHUNK_BYTES, least))
        self._base += self._at
        self._buffer = self._buffer[self._at :] + piece
        self._at = 0
        return bool(piece)
