"""Which lines of OUT are failures, found without parsing the others."""

from __future__ import annotations

from pathlib import Path

from gristmill.outlet.lines import FAILED, Tail, parse_result
from gristmill.outlet.proof import file_lines

_TAIL_BYTES = 1024
"""Longer than what Gristmill says of a line."""


def failures(out: Path) -> dict[int, str]:
    """Ordinal -> class of every failed line of OUT, in order; see `failed_lines`."""
    return {ordinal: tail.cls for ordinal, tail in failed_lines(out).items()}


def failed_lines(out: Path) -> dict[int, Tail]:
    """Ordinal -> what Gristmill says of every failed line of OUT, in order.

    Raises:
        DiskError: it cannot be read.
        NotOurLineError: a failed line is damaged.
    """
    found: dict[int, Tail] = {}
    for line in file_lines(out):
        if b'"failed"' in line[-_TAIL_BYTES:]:
            tail = parse_result(line).gristmill
            if tail.status == FAILED:
                found[tail.index] = tail
    return found
