"""The order map: which lines of INPUT are there, and where they lie, by ordinal.

A file of 16 bytes a line (sparse where lines are missing), so memory stays flat whatever the size of the job; only one
bit a line is held in memory, to answer `in` without a system call. The map is derived from the segments and built anew
at each start, so it needs no fsync and cannot be stale.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from gristmill.outlet.errors import disk
from gristmill.outlet.files import pwrite_all
from gristmill.outlet.rows import ORDER


class Bitmap:
    """A set of small natural numbers, one bit each."""

    __slots__ = ("_bits", "count")

    def __init__(self) -> None:
        self._bits = bytearray()
        self.count = 0

    def __contains__(self, number: int) -> bool:
        byte = number >> 3
        return byte < len(self._bits) and bool(self._bits[byte] & (1 << (number & 7)))

    def add(self, number: int) -> bool:
        """Set it; False when it was set before."""
        byte, bit = number >> 3, 1 << (number & 7)
        if byte >= len(self._bits):
            self._bits.extend(bytes(max(byte + 1 - len(self._bits), len(self._bits) // 8, 1024)))
        if self._bits[byte] & bit:
            return False
        self._bits[byte] |= bit
        self.count += 1
        return True

    def absent(self, numbers: Iterable[int]) -> list[int]:
        """Those of `numbers` that are not set, in their order."""
        bits = self._bits
        end = len(bits) * 8
        return [n for n in numbers if n >= end or not bits[n >> 3] & (1 << (n & 7))]

    def run(self, first: int, most: int) -> int:
        """How many numbers from `first` on are set without a gap, `most` at most."""
        bits, number = self._bits, first
        end = min(first + most, len(bits) * 8)
        while number < end and bits[number >> 3] & (1 << (number & 7)):
            number += 8 if not number & 7 and bits[number >> 3] == 0xFF else 1
        return max(0, min(number, end) - first)

    def copy(self) -> Bitmap:
        """A set of its own with the same numbers."""
        other = Bitmap()
        other._bits, other.count = bytearray(self._bits), self.count
        return other

    def missing(self, total: int, most: int) -> list[int]:
        """The first `most` numbers below `total` that are not set."""
        found: list[int] = []
        byte = 0
        while byte * 8 < total and len(found) < most:
            if byte >= len(self._bits) or self._bits[byte] != 0xFF:
                numbers = range(byte * 8, min(byte * 8 + 8, total))
                found.extend(n for n in numbers if n not in self)
            byte += 1
        return found[:most]

    def only_here(self, other: Bitmap, most: int) -> list[int]:
        """The first `most` numbers that are set here and not in `other`."""
        found: list[int] = []
        for byte, here in enumerate(self._bits):
            there = other._bits[byte] if byte < len(other._bits) else 0
            if here & ~there:
                found.extend(byte * 8 + i for i in range(8) if here & ~there & (1 << i))
            if len(found) >= most:
                break
        return found[:most]


class OrderMap:
    """Places by ordinal, in a file that is emptied when it is opened.

    Raises (all methods):
        DiskError: the file cannot be made, written or read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.present = Bitmap()
        self.end = 0
        """One more than the highest ordinal that is there."""
        with disk(path):
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)

    def put(self, places: Iterable[tuple[int, int, int, int]]) -> None:
        """Note (ordinal, offset, length, segment) rows in ascending order of ordinal; neighbours share one write."""
        first = after = -1
        packed: list[bytes] = []
        pack, add = ORDER.pack, self.present.add
        with disk(self._path):
            for ordinal, offset, length, segment in places:
                if ordinal != after:
                    self._write(first, packed)
                    first, packed = ordinal, []
                packed.append(pack(offset, length, segment))
                after = ordinal + 1
                add(ordinal)
            self._write(first, packed)
        self.end = max(self.end, after)

    def _write(self, first: int, packed: list[bytes]) -> None:
        if packed:
            pwrite_all(self._fd, b"".join(packed), first * ORDER.size)

    def window(self, first: int, count: int) -> list[tuple[int, int, int]]:
        """(offset, length, segment) of up to `count` ordinals from `first`; length 0 where there is none."""
        with disk(self._path):
            data = os.pread(self._fd, count * ORDER.size, first * ORDER.size)
        return list(ORDER.iter_unpack(data[: len(data) - len(data) % ORDER.size]))

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
