"""Lays the good answers of a retry over the file of its parent: each takes the place of the failure that it makes good.

The whole file is written anew beside OUT, checked while it is written, made durable and renamed over OUT. So OUT is the
old file or the new one, and doing it again changes nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from gristmill.outlet.errors import ProofError, disk
from gristmill.outlet.files import sync_folder, write_file
from gristmill.outlet.lines import OK, NotOurLineError, parse_line, renumber, take_place
from gristmill.outlet.proof import Audit, file_lines
from gristmill.outlet.reading import ordered_lines
from gristmill.outlet.workdir import Work, foreign_line

Answer = tuple[int, bytes]
"""Ordinal in the parent's input, and the line that answers it."""


def answers_of(work: Work, ordinals: Sequence[int]) -> Iterator[Answer]:
    """The good lines of a retry's work folder, in order; its k-th request is the parent's `ordinals[k]`."""
    for chunk in ordered_lines(work, gaps=True):
        for line in chunk.splitlines(keepends=True):
            tail = parse_line(line).gristmill
            if tail.status == OK:
                yield ordinals[tail.index], line


def overlay(out: Path, answers: Iterable[Answer], fresh: Path, total: int) -> Audit:
    """Replace lines of `out` by `answers`, which ascend; what the file holds then.

    Args:
        fresh: where the new file is written first, on the same file system.
        total: lines of the parent's input.

    Raises:
        ProofError: the new file would not be in order, or hold fewer answers than before; `out` stands.
        OutRefusedError: `out` holds a line that is not ours.
        DiskError: a file cannot be read or written; `out` stands.
    """
    before, after = Audit(f"{out}", total), Audit(f"{fresh}", total)
    write_file(fresh, _audited(_merge(out, answers, before), after))
    if after.ok < before.ok or before.seen.only_here(after.seen, 1):
        raise ProofError(f"{out}: laying a retry over it would lose answers, so it is left as it was")
    with disk(out):
        shutil.copymode(out, fresh)
        fresh.replace(out)
    sync_folder(out.parent)
    return after


def _audited(lines: Iterable[bytes], audit: Audit) -> Iterator[bytes]:
    for line in lines:
        audit.add(line)
        yield line


def _merge(out: Path, answers: Iterable[Answer], before: Audit) -> Iterator[bytes]:
    waiting = iter(answers)
    answer = next(waiting, None)
    for number, line in enumerate(file_lines(out), start=1):
        before.add(line)
        try:
            old = parse_line(line).gristmill
        except NotOurLineError:
            raise foreign_line(out, number) from None
        while answer is not None and answer[0] < old.index:  # its failure never came to OUT
            yield renumber(answer[1], answer[0])
            answer = next(waiting, None)
        if answer is not None and answer[0] == old.index:
            yield take_place(answer[1], old)
            answer = next(waiting, None)
        else:
            yield line
    while answer is not None:
        yield renumber(answer[1], answer[0])
        answer = next(waiting, None)
