"""`results JOB -o OUT` over an OUT that an earlier `results` of the same job has written: its lines stay as they are.

Here no feeder compares requests; the lines belong to the same job, so their ordinals still mean the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gristmill.outlet.carried import CarriedWriter, carried_path
from gristmill.outlet.errors import OutRefusedError, disk
from gristmill.outlet.files import sync_folder
from gristmill.outlet.lines import RETRY_MARK, NotOurLineError, number_of_id, parse_line
from gristmill.outlet.rows import BASE, Place
from gristmill.outlet.workdir import MAX_LINE_BYTES, Work, foreign_line


def adopt(work: Work) -> int:
    """Carry all lines of OUT over, after `Work.begin` and after every `Work.resume`; how many are carried.

    It happens once and as a whole: what a crash interrupted is done by the next call. Nothing happens where OUT is not
    the base, or where a plan over it was made.

    Raises:
        OutRefusedError: OUT holds a line that is not ours, or lines of another job, or not in order. A work folder
            that holds no result is removed then.
        DiskError: a file cannot be read or written.
    """
    if not work.base or work.out is None or not work.adopted:
        return 0
    assert work.current is not None, "adopt comes after begin"
    path = carried_path(work.folder, work.current.generation)
    if path.exists():
        return work.ledger.carried.count()
    fresh = path.with_name("carried.new")
    try:
        _carry_all(work.out, work.current.job, fresh)
    except OutRefusedError:
        if work.ledger.new == 0:
            work.remove()
        raise
    with disk(path):
        fresh.replace(path)
    sync_folder(work.folder)
    return work.ledger.carried.count()


def _carry_all(out: Path, job: str, fresh: Path) -> None:
    writer = CarriedWriter(fresh)
    try:
        writer.rewind(0)
        for place in _places(out, job):
            writer.add(place)
        writer.flush()
    finally:
        writer.close()


def _places(out: Path, job: str) -> Iterator[Place]:
    offset, last = 0, -1
    with disk(out), out.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES), b""), start=1):
            start, offset = offset, offset + len(line)
            try:
                parsed = parse_line(line)
            except NotOurLineError:
                if not line.endswith(b"\n"):
                    return  # torn: it is still in the store, or was never finished
                raise foreign_line(out, number) from None
            ordinal = parsed.gristmill.index
            if not parsed.id.startswith((f"{job}-", f"{job}{RETRY_MARK}")) or ordinal <= last:
                raise OutRefusedError(
                    out,
                    f"{out}, line {number}: from another job than {job}, or out of order, so the file is left "
                    "untouched; name another file, or say `--overwrite`",
                )
            last = ordinal
            yield Place(ordinal, ordinal, number_of_id(parsed.id), start, len(line), BASE)
