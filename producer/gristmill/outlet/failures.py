"""Which lines of OUT are failures, found without parsing the others."""

from __future__ import annotations

from pathlib import Path

from gristmill.outlet.lines import FAILED, parse_result
from gristmill.outlet.proof import file_lines

_TAIL_BYTES = 1024
"""Longer than what Gristmill says of a line."""


def failures(out: Path) -> dict[int, str]:
    """Ordinal -> class of every failed line of OUT, in order.

    Raises:
        DiskError: it cannot be read.
        NotOurLineError: a failed line is damaged.
    """
    found: dict[int, str] = {}
    for line in file_lines(out):
        if b'"failed"' in line[-_TAIL_BYTES:]:
            tail = parse_result(line).gristmill
            if tail.status == FAILED:
                found[tail.index] = tail.cls
    return found
