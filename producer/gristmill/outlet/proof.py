"""The proof at the end: what was asked for, what lies in OUT and what the store counted are the same.

OUT is read again from the disk, line by line. Three things must agree:

- each line of INPUT that has a result stands in OUT exactly once, in order (a bitmap over ordinals, of the file);
- it is the set of lines that the ledger and the carried rows name (a bitmap of their own);
- the store counted as many results, and as many failed ones, as the ledger has.

A difference is an error that names the lines; then nothing is removed, so nothing is lost. A store that has lost a
suffix may have counted otherwise (a request was run again, and the first answer was kept): then its count of failures
is not compared. Nor is it when a result came twice, in whichever process that was (`Work.doubt`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from gristmill.contract.lifecycle import TERMINAL, JobState
from gristmill.outlet.errors import ProofError, disk
from gristmill.outlet.ledger import Ledger
from gristmill.outlet.lines import OK, NotOurLineError, parse_result, tokens
from gristmill.outlet.order import Bitmap
from gristmill.outlet.reading import ordered_lines
from gristmill.outlet.summary import Summary, Tokens
from gristmill.outlet.workdir import MAX_LINE_BYTES, Work
from gristmill.queue.replies import JobSnapshot

_READ_BYTES = 1 << 20
_NAMED = 5
"""So many lines are named in an error."""


def prove(work: Work, snapshot: JobSnapshot, *, in_out: bool = True, rolled_back: bool = False) -> Summary:
    """The summary of OUT, once it has been proved; blocks on the disk.

    Args:
        work: after `assemble.finish`.
        snapshot: the job's, taken after the collector had ended.
        in_out: read OUT; False where it was kept as it was, or where the lines went to a stream: then the lines are
        read where
            the ledger has them.
        rolled_back: the store lost a suffix meanwhile (`Collected.rolled_back`).

    Raises:
        ProofError: the counts differ; the sentence names the first lines.
        DiskError: OUT or the folder cannot be read.
    """
    total = total_lines(work, snapshot)
    if in_out and work.out is not None:
        audit = Audit(f"{work.out}", total)
        lines = file_lines(work.out)
    else:
        audit = Audit(f"{work.folder}", total)
        lines = _split(ordered_lines(work, gaps=True))
    for line in lines:
        audit.add(line)
    _compare_with_ledger(audit, work.ledger)
    repeated = work.current is not None and work.current.repeated
    _compare_with_store(work, snapshot, rolled_back=rolled_back or repeated)
    if snapshot.state is JobState.COMPLETE:
        audit.require_all()
    return summary_of(audit, snapshot)


def audit_file(out: Path, total: int) -> Audit:
    """What `out` holds; blocks on the disk.

    Raises:
        ProofError: it is no output of an input of `total` lines.
        DiskError: it cannot be read.
    """
    audit = Audit(f"{out}", total)
    for line in file_lines(out):
        audit.add(line)
    return audit


def total_lines(work: Work, snapshot: JobSnapshot) -> int:
    """Lines of INPUT, as far as they are known: those of the job, and those that an earlier run had finished."""
    own = snapshot.prod if snapshot.n is None else snapshot.n
    return own if work.adopted else own + work.ledger.carried.count()


class Audit:
    """Reads lines that must ascend by ordinal below `total`, and counts them; `where` is for messages.

    Attributes:
        total: lines of INPUT.
        seen: the ordinals.
        ok, failed, attempts: counts.
        by_class: failed ones by class.
        examples: the first message of each class.
        prompt_tokens, completion_tokens: sums of what the bodies tell.
    """

    def __init__(self, where: str, total: int) -> None:
        self._where = where
        self.total = total
        self._last = -1
        self.seen = Bitmap()
        self.ok = self.failed = self.attempts = 0
        self.prompt_tokens = self.completion_tokens = 0
        self.by_class: dict[str, int] = {}
        self.examples: dict[str, str] = {}

    def add(self, line: bytes) -> None:
        """Count one line.

        Raises:
            ProofError: it is not ours, not in order, met before, or not of this INPUT.
        """
        try:
            parsed = parse_result(line)
        except NotOurLineError:
            raise ProofError(f"{self._where}: the line after that of input line {self._last + 1} is damaged") from None
        tail = parsed.gristmill
        self._place(tail.index)
        prompt, completion = tokens(parsed.response)
        self.prompt_tokens += prompt
        self.completion_tokens += completion
        self.attempts += tail.attempts
        ok = tail.status == OK
        if ok and parsed.error is None:
            self.ok += 1
            return
        if ok or parsed.error is None:
            raise ProofError(f"{self._where}: input line {tail.index + 1} is both ok and failed", [tail.index])
        self.failed += 1
        self.by_class[tail.cls] = self.by_class.get(tail.cls, 0) + 1
        self.examples.setdefault(tail.cls, parsed.error.message)

    def _place(self, ordinal: int) -> None:
        if ordinal >= self.total:
            raise ProofError(f"{self._where}: input line {ordinal + 1} of {self.total} cannot be", [ordinal])
        if not self.seen.add(ordinal):
            raise ProofError(f"{self._where}: input line {ordinal + 1} stands there twice", [ordinal])
        if ordinal < self._last:
            raise ProofError(f"{self._where}: input line {ordinal + 1} is out of order", [ordinal])
        self._last = ordinal

    def require_all(self) -> None:
        """
        Raises:
            ProofError: some line below `total` was not met.
        """
        missing = self.seen.missing(self.total, _NAMED)
        if missing:
            count = self.total - self.seen.count
            raise ProofError(f"{self._where}: {_lines(count, missing)} without a result", missing)


def _compare_with_ledger(audit: Audit, ledger: Ledger) -> None:
    known = ledger.order.present.copy()
    row = 0
    while rows := ledger.carried.rows(row):
        for place in rows:
            known.add(place.ordinal)
        row += len(rows)
    if lost := known.only_here(audit.seen, _NAMED):
        raise ProofError(f"{_lines(known.count - audit.seen.count, lost)} finished, but not in the output", lost)
    if extra := audit.seen.only_here(known, _NAMED):
        raise ProofError(f"{_lines(audit.seen.count - known.count, extra)} in the output, but never finished", extra)


def _compare_with_store(work: Work, snapshot: JobSnapshot, *, rolled_back: bool) -> None:
    ledger = work.ledger
    if snapshot.state not in TERMINAL or (rolled_back and snapshot.state is not JobState.COMPLETE):
        return  # the store still has, or may have, results that were not collected
    carried = ledger.carried.count() if work.adopted else 0
    if snapshot.done != ledger.new + carried:
        raise ProofError(
            f"job {snapshot.job}: the store counted {snapshot.done:,} results, {ledger.new + carried:,} are here; "
            "another collector may have taken some of them"
        )
    if not rolled_back and not carried and snapshot.failed != ledger.new_failed:
        raise ProofError(
            f"job {snapshot.job}: the store counted {snapshot.failed:,} failed results, {ledger.new_failed:,} are here"
        )


def summary_of(audit: Audit, snapshot: JobSnapshot) -> Summary:
    """What `audit` has counted, as the summary of the job."""
    open_lines = audit.total - audit.ok - audit.failed
    ended = snapshot.state in TERMINAL
    in_flight = 0 if ended else min(snapshot.in_flight, open_lines)
    end_ms = snapshot.finished_at_ms or snapshot.now_ms
    return Summary(
        job=snapshot.job,
        state=str(snapshot.state),
        total=audit.total,
        ok=audit.ok,
        failed=audit.failed,
        waiting=0 if ended else open_lines - in_flight,
        in_flight=in_flight,
        not_run=open_lines if ended else 0,
        by_class=dict(sorted(audit.by_class.items())),
        attempts=audit.attempts,
        tokens=Tokens(audit.prompt_tokens, audit.completion_tokens),
        wall_s=round(max(0, end_ms - snapshot.created_at_ms) / 1000, 3),
        examples=audit.examples,
    )


def file_lines(path: Path) -> Iterator[bytes]:
    """Its lines, each with its newline.

    Raises:
        DiskError: it cannot be read.
    """
    with disk(path), path.open("rb", buffering=_READ_BYTES) as file:
        yield from iter(partial(file.readline, MAX_LINE_BYTES), b"")


def _split(chunks: Iterable[bytes]) -> Iterator[bytes]:
    for chunk in chunks:
        yield from chunk.splitlines(keepends=True)


def _lines(count: int, ordinals: list[int]) -> str:
    """Such as "3 lines of the input (1, 2, 7)": people count lines from 1. At least the named ones are counted."""
    named = ", ".join(str(o + 1) for o in ordinals)
    more = ", ..." if count > len(ordinals) else ""
    count = max(count, len(ordinals))
    return f"{count:,} line{'' if count == 1 else 's'} of the input ({named}{more})"
